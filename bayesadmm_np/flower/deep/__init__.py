"""Networks over Flower: the rounds of `bayesadmm_np.torch.run` with sites elsewhere; needs the extra `torch`."""

from .plan import DeepPlan
from .server import DeepCoordinator, final_model
from .site import DeepSite
from .terms import DeepTerms

__all__ = ["DeepCoordinator", "DeepPlan", "DeepSite", "DeepTerms", "final_model"]
