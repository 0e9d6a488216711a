"""IVON as a `torch.optim.Optimizer`, with a general diagonal prior and multipliers (Algorithm 2)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor

from .._validation import as_number, as_positive
from .kernel import Buffers, Rates, Terms, collect, draw, step_rate, update
from .randomness import draw_normals

VECTORS = ("prior_mean", "prior_precision", "linear", "curvature")
SAVED = ("hess", "momentum", "gradient", "product")
UNMOVED = 0.01
"""A Hessian estimate that is within this relative distance of where it started has not been learned."""

Vector: TypeAlias = float | Tensor | None


class IVON(torch.optim.Optimizer):
    """Improved variational online Newton (Shen et al. 2024, Algorithm 1) with prior and multipliers (Algorithm 2).

    Minimises λ E_q[ℓ(θ) + vᵀθ − ½ θᵀdiag(u)θ] + KL(q‖N(m_p, 1/s_p)) over q = N(m, 1/s), where ℓ is the **mean** loss
    of a minibatch (Eq. 64). With δ = s_p/λ a step is

        ĥ ← ĝ (θ − m)/σ² − u
        g ← β₁g + (1 − β₁)ĝ
        h ← β₂h + (1 − β₂)ĥ + ½(1 − β₂)²(h − ĥ)²/(h + δ)
        m ← m − α(g/(1 − β₁ᵗ) + v − um + δ(m − m_p))/(h + δ)
        s ← λ(h + δ),  σ = 1/√s

    A client of N_k rows under the site (v_k, u_k) and the server's (m_g, s_g) takes λ = N_k/(ρτ), v = (τ/N_k)v_k,
    u = (τ/N_k)u_k, m_p = m_g and s_p = s_g (App. D.4). The parameters are m, except inside `sampled_params`.

    A vector is one number, or one flat tensor in the order of the group's parameters. All arguments but `generator` may
    differ between groups. The state has the parameters' dtype, float32 or float64: for mixed precision use autocast to
    bfloat16.

    Parameters
    ----------
    params : iterable of Parameter, or of dict
    lr : float
        α, before the rescaling.
    ess : float
        λ, the effective sample size: the number of rows over the temperature.
    hess_init : float, default 1.0
        h₀.
    beta1 : float, default 0.9
    beta2 : float, default 0.99999
        If 1 − β₂ is far below 1/T in a run of T steps, the Hessian estimate stays at h₀.
    weight_decay : float, default 1e-4
        δ where `prior_precision` is not given.
    prior_mean : float or Tensor, optional
        m_p; default 0.
    prior_precision : float or Tensor, optional
        s_p; then δ = s_p/λ.
    linear : float or Tensor, optional
        v, on the scale of the mean loss; default 0.
    curvature : float or Tensor, optional
        u, on the scale of the mean loss; default 0.
    clip_radius : float, default inf
        Bound on each entry of the preconditioned direction.
    rescale_lr : bool, default True
        Multiply α by h₀ + δ, so that the first step is as long as SGD's; with `prior_precision` at most Newton's step.
    generator : torch.Generator, optional
        Source of the noise, part of `state_dict`; default torch's global generator, as in `ivon-opt`. On a CPU a given
        generator draws a key for every sample, and Philox makes the normals.

    Raises
    ------
    ValueError
        When an argument is out of range or does not fit the parameters.

    Examples
    --------
    >>> import torch
    >>> from bayesadmm_np.torch import IVON
    >>> x = torch.nn.Parameter(torch.zeros(2))
    >>> optimiser = IVON([x], lr=0.1, ess=100.0, beta2=0.9, generator=torch.Generator().manual_seed(0))
    >>> for _ in range(300):
    ...     with optimiser.sampled_params(train=True):
    ...         ((x - 1.0) ** 2).sum().backward()
    ...     optimiser.step()
    >>> [round(value, 1) for value in x.tolist()]
    [1.0, 1.0]
    """

    _step_supports_amp_scaling = True  # a GradScaler then sets `found_inf`, by which `step` knows and refuses it

    def __init__(
        self,
        params: Any,
        lr: float,
        ess: float,
        *,
        hess_init: float = 1.0,
        beta1: float = 0.9,
        beta2: float = 0.99999,
        weight_decay: float = 1e-4,
        prior_mean: Vector = None,
        prior_precision: Vector = None,
        linear: Vector = None,
        curvature: Vector = None,
        clip_radius: float = float("inf"),
        rescale_lr: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        beside = ("self", "params", "generator", "beside", "__class__")
        defaults = {name: given for name, given in locals().items() if name not in beside}
        if generator is not None and not isinstance(generator, torch.Generator):
            raise ValueError(f"generator must be a torch.Generator, got {type(generator).__name__}.")
        self._generator = generator
        self._buffers: dict[Tensor, Buffers] = {}
        self._kept: dict[Tensor, tuple[int, int]] = {}  # the gradients of the last block, and their versions
        self._sampling = False
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; it needs at least one parameter, all of one dtype and on one device."""
        super().add_param_group(param_group)
        try:
            self._prepare(self.param_groups[-1])
        except ValueError:
            self.param_groups.pop()
            raise

    def _prepare(self, group: dict[str, Any]) -> None:
        params = group["params"]
        if not params:
            raise ValueError("params: a group must hold at least one parameter, got none.")
        if params[0].dtype not in (torch.float32, torch.float64):
            raise ValueError(f"params must be float32 or float64 (use autocast), got {params[0].dtype}.")
        if len({(p.dtype, p.device) for p in params}) > 1:
            raise ValueError("params: all of a group must have one dtype and lie on one device.")
        for name in ("lr", "ess"):
            group[name] = as_positive(group[name], name)
        for name in ("hess_init", "beta1", "beta2", "weight_decay"):
            group[name] = as_number(group[name], name)
        if group["weight_decay"] < 0:
            raise ValueError(f"weight_decay must be >= 0, got {group['weight_decay']!r}.")
        Rates.of(group)
        state = self.state[params[0]]
        for name in VECTORS:
            vector = _read_vector(group.pop(name), params, name)
            if name == "prior_precision" and vector is not None and not bool((vector > 0).all()):
                raise ValueError("prior_precision must be > 0 everywhere.")
            if vector is not None:
                state[name] = vector
        self._adopt(group)
        state.update(step=0, samples=0)

    def _adopt(self, group: dict[str, Any]) -> None:
        """Make buffers for a group, and let its state refer to the buffers that are saved."""
        params = group["params"]
        made = Buffers.like(_flat(params), group["hess_init"])
        self._buffers[params[0]] = made
        self.state[params[0]].update({name: getattr(made, name) for name in SAVED})

    def _parts(self) -> Iterator[tuple[dict[str, Any], list[Tensor], dict[str, Any], Buffers]]:
        """Yield every group with its parameters, state and buffers."""
        for group in self.param_groups:
            params = group["params"]
            yield group, params, self.state[params[0]], self._buffers[params[0]]

    def _terms(self, group: dict[str, Any]) -> Terms:
        state = self.state[group["params"][0]]
        precision = state.get("prior_precision")
        delta = group["weight_decay"] if precision is None else precision / group["ess"]
        slope = state.get("linear")
        if "prior_mean" in state:
            pull = -delta * state["prior_mean"]
            slope = pull if slope is None else pull.add_(slope)
        rate = step_rate(group["lr"], delta, Rates.of(group))
        return Terms(group["ess"], delta, rate, slope, state.get("curvature"))

    @contextmanager
    def sampled_params(self, train: bool = False) -> Iterator[None]:
        """Set the parameters to a sample of N(m, 1/s) inside the block, and back to m at its end.

        With `train=True` gradients are cleared at the start, and kept at the end for the next step. Backward passes in
        one block add up; `.grad` is then the mean over blocks. An exception undoes its block.

        Parameters
        ----------
        train : bool, default False

        Raises
        ------
        RuntimeError
            When blocks are nested, or no parameter got a gradient.
        """
        if self._sampling:
            raise RuntimeError("sampled_params: a block is already open; samples cannot be nested.")
        self._sampling = True
        try:
            with torch.no_grad():
                for group, params, _, b in self._parts():
                    _flat(params, b.mean)
                    terms = self._terms(group)
                    draw_normals(b.noise, self._generator).mul_(float(terms.ess) ** -0.5)
                    draw(b, terms)
                    _scatter(b.theta, params)
            if train:
                self.zero_grad()
            yield
            if train:
                self._collect()
        finally:
            with torch.no_grad():
                for _, params, _, b in self._parts():
                    _scatter(b.mean, params)
            self._sampling = False

    @torch.no_grad()
    def _collect(self) -> None:
        if all(p.grad is None for group in self.param_groups for p in group["params"]):
            raise RuntimeError("sampled_params(train=True): no parameter has a gradient; call backward in the block.")
        for group, params, state, b in self._parts():
            slopes = [torch.zeros_like(p) if p.grad is None else p.grad for p in params]
            gradient = _flat(slopes, b.slot(state["samples"]))
            collect(b, gradient, Rates.of(group), state["samples"])
            state["samples"] += 1
            if state["samples"] > 1:
                mean = torch.div(b.gradient, state["samples"], out=b.scratch).split([p.numel() for p in params])
                for p, piece in zip(params, mean, strict=True):
                    p.grad = piece.view_as(p).clone()
            self._kept |= {p: (id(p.grad), p.grad._version) for p in params if p.grad is not None}

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Take one step from the samples since the last one, one of each `with sampled_params(train=True)` block.

        Parameters
        ----------
        closure : None
            Torch's argument, which is refused: the loss is computed in the blocks.

        Raises
        ------
        RuntimeError
            When there is no sample since the last step, a block is open, gradients were changed after their block,
            or a GradScaler is at work.
        """
        is_scaled = [self.__dict__.pop(given, None) is not None for given in ("grad_scale", "found_inf")]
        if any(is_scaled):
            raise RuntimeError("step: gradients that a GradScaler scaled are not supported; use autocast to bfloat16.")
        self._refuse_open("step")
        if closure is not None or not all(state["samples"] for _, _, state, _ in self._parts()):
            raise RuntimeError("step needs a sample: run backward in a `with sampled_params(train=True)` block.")
        self._refuse_changes()
        for group, params, state, b in self._parts():
            state["step"] += 1
            _flat(params, b.mean)
            update(b, self._terms(group), Rates.of(group), state["step"], state["samples"])
            _scatter(b.mean, params)
            state["samples"] = 0

    def _refuse_changes(self) -> None:
        """Refuse a `.grad` that was written to since the last block: the step is computed from what the block kept."""
        now = {p: p.grad for group in self.param_groups for p in group["params"] if p.grad is not None}
        if any(self._kept.get(p) not in (None, (id(grad), grad._version)) for p, grad in now.items()):
            for _, _, state, _ in self._parts():
                state["samples"] = 0
            raise RuntimeError(
                "the gradients were changed after their block: clip them inside the block of sampled_params."
            )

    def _refuse_open(self, what: str) -> None:
        if self._sampling:
            raise RuntimeError(f"{what}: the parameters are a sample; leave the block of sampled_params first.")

    @torch.no_grad()
    def posterior(self) -> tuple[Tensor, Tensor]:
        """Return m and s = λ(h + δ), flat, in the order of the parameters; shapes (P,).

        Warns when h has stayed within one per cent of h₀ although steps were taken: s is then chosen, not learned.

        Raises
        ------
        RuntimeError
            Inside a block of `sampled_params`.
        """
        self._refuse_open("posterior")
        means, precisions = [], []
        for group, params, state, b in self._parts():
            terms = self._terms(group)
            means.append(_flat(params))
            precisions.append((b.hess + terms.delta) * terms.ess)
            if state["step"]:
                warn_unmoved(b.hess, group["hess_init"], state["step"], group["beta2"], stacklevel=3)
        return torch.cat(means), torch.cat(precisions)

    def state_dict(self) -> dict[str, Any]:
        """Return torch's state dictionary, and with it the state of the generator."""
        content = super().state_dict()
        if self._generator is not None:
            content["generator"] = self._generator.get_state()
        return content

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue, bit for bit, where `state_dict` was taken.

        Raises
        ------
        ValueError
            When it belongs to other parameters.
        """
        own = [b.mean.numel() for *_, b in self._parts()]
        try:
            firsts = [group["params"][0] for group in state_dict["param_groups"]]
            sizes = [state_dict["state"][first]["hess"].numel() for first in firsts]
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError("state_dict is not one of IVON.") from error
        if sizes != own:
            raise ValueError(f"state_dict is of other parameters: its groups hold {sizes} numbers, expected {own}.")
        super().load_state_dict({key: state_dict[key] for key in ("state", "param_groups")})
        for group in self.param_groups:
            state = self.state[group["params"][0]]
            loaded = {name: state[name] for name in SAVED}
            self._adopt(group)
            for name, value in loaded.items():
                state[name].copy_(value)
        if self._generator is not None and "generator" in state_dict:
            self._generator.set_state(state_dict["generator"].cpu())


def warn_unmoved(hess: Tensor, hess_init: float, steps: int, beta2: float, stacklevel: int) -> None:
    """Warn that the precision was not learned, where the root mean square of h/h₀ − 1 is below `UNMOVED`."""
    moved = float((hess / hess_init - 1.0).square().mean().sqrt())
    if moved < UNMOVED:
        fact = f"the Hessian estimate has moved by {moved:.1e} of hess_init in {steps} steps with beta2={beta2}"
        cure = f"to learn it lower beta2 (to about 1 - 1/{steps} or less)"
        warnings.warn(f"{fact}: the posterior precision is still the chosen start; {cure}.", stacklevel=stacklevel)


def _flat(params: Sequence[Tensor], out: Tensor | None = None) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in params], out=out)


def _scatter(flat: Tensor, params: Sequence[Tensor]) -> None:
    pieces = torch.split(flat, [p.numel() for p in params])
    torch._foreach_copy_(list(params), [piece.view_as(p) for piece, p in zip(pieces, params, strict=True)])


def _read_vector(value: Vector, params: Sequence[Tensor], name: str) -> Tensor | None:
    """Return a flat tensor like the parameters, or None."""
    if value is None:
        return None
    like, size = params[0], sum(p.numel() for p in params)
    if isinstance(value, Tensor):
        flat = value.detach()
        if flat.ndim and tuple(flat.shape) != (size,):
            raise ValueError(f"{name} must be a number, or a flat tensor of {size}.")
    else:
        flat = torch.tensor(as_number(value, name))
    flat = flat.to(dtype=like.dtype, device=like.device).expand(size).clone()
    if not bool(torch.isfinite(flat).all()):
        raise ValueError(f"{name} must be finite.")
    return flat
