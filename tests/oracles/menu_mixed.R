# Writes menu_mixed.json: models with a random intercept by lme4, for tests/glm/test_menu_mixed.py.
#   Rscript tests/oracles/menu_mixed.R > tests/oracles/menu_mixed.json
# Data sets are those of lme4 and MASS. lme4's optimiser is followed by Newton's method in theta on its own deviance
# function, with numDeriv's derivatives, so that the reference is tighter than lme4's defaults. For glmer the standard
# errors are those of numDeriv's Hessian (Richardson) of lme4's deviance in (theta, beta).
suppressMessages({library(lme4); library(MASS); library(jsonlite); library(numDeriv)})
invisible(Sys.setlocale("LC_COLLATE", "C"))
fits <- list(); tables <- list()

plain <- function(d, columns) {
  d <- d[, columns, drop = FALSE]
  for (n in names(d)) if (is.factor(d[[n]])) d[[n]] <- as.character(d[[n]])
  as.data.frame(d)
}

# A table is kept once for all fits to it.
keep <- function(d, name, columns) {
  table <- sub(" .*", "", name)
  tables[[table]] <<- plain(d, columns)
  table
}

linear <- function(name, d, formula, group, reml) {
  formula <- as.formula(formula)
  tight <- lmerControl(optimizer = "bobyqa", optCtrl = list(rhoend = 1e-12, maxfun = 1e5))
  f <- suppressMessages(lmer(formula, d, REML = reml, control = tight))
  dev <- getME(f, "devfun"); if (is.null(dev)) dev <- update(f, devFunOnly = TRUE)
  theta <- getME(f, "theta")
  if (theta > 1e-5) for (i in 1:4) theta <- theta - as.numeric(grad(dev, theta) / hessian(dev, theta)) else theta <- 0
  invisible(dev(theta))
  e <- environment(dev)
  n <- nrow(d); p <- length(fixef(f)); df <- n - reml * p
  sigma <- sqrt((e$resp$wrss() + e$pp$sqrL(1)) / df)
  coef <- e$pp$beta(1)
  rx <- e$pp$RX()
  u <- e$pp$b(1)
  fits[[name]] <<- list(
    kind = "linear", formula = deparse(nobars(formula)), group = group, reml = reml, names = I(names(fixef(f))), coef = I(coef),
    std_err = I(sigma * sqrt(diag(chol2inv(rx)))), sd_group = unname(theta) * sigma, sigma = sigma,
    log_likelihood = -dev(theta) / 2, lr = if (reml) NULL else as.list(sapply(
      attr(terms(nobars(formula)), "term.labels"), function(term)
        as.numeric(2 * (logLik(f) - logLik(update(f, as.formula(paste(". ~ . -", term)))))))),
    lme4_std_err = I(unname(sqrt(diag(as.matrix(vcov(f)))))),
    lme4_log_likelihood = as.numeric(logLik(f)), modes = u, groups = levels(getME(f, "flist")[[1]]),
    data = keep(d, name, all.vars(formula)))
}

logistic <- function(name, d, formula, fixed, group, nodes, events = NULL, trials = NULL) {
  tight <- glmerControl(optimizer = "bobyqa", optCtrl = list(rhoend = 1e-10, maxfun = 1e5), tolPwrss = 1e-13)
  f <- suppressWarnings(glmer(as.formula(formula), d, binomial, nAGQ = nodes, control = tight))
  dev <- update(f, devFunOnly = TRUE, nAGQ = nodes)
  best <- unname(c(getME(f, "theta"), fixef(f)))
  if (best[1] < 1e-5) best[1] <- 0
  free <- if (best[1] > 0) seq_along(best) else -1
  for (i in 1:2) best[free] <- best[free] - solve(hessian(dev, best)[free, free], grad(dev, best)[free])
  H <- hessian(dev, best) / 2
  H2 <- hessian(dev, best, method.args = list(d = 0.02, r = 6)) / 2
  se <- sqrt(diag(solve(H[free, free]))); se2 <- sqrt(diag(solve(H2[free, free])))
  if (best[1] > 0) { se <- se[-1]; se2 <- se2[-1] }
  # likelihood-ratio tests of the terms, each fit as tight
  lr <- sapply(attr(terms(as.formula(fixed)), "term.labels"), function(term) {
    g <- suppressWarnings(update(f, as.formula(paste(". ~ . -", term))))
    as.numeric(2 * (logLik(f) - logLik(g)))
  })
  fits[[name]] <<- list(
    kind = "logistic", lr = as.list(lr), formula = fixed, group = group, nodes = nodes,
    events = events, trials = trials, names = I(names(fixef(f))),
    coef = best[-1], std_err = se, sd_group = best[1], gradient = max(abs(grad(dev, best))),
    std_err_digits = max(abs(se2 / se - 1)), log_likelihood = as.numeric(logLik(f)),
    lme4_std_err = I(unname(sqrt(diag(as.matrix(vcov(f)))))), lme4_sd_group = unname(getME(f, "theta")),
    modes = unname(ranef(f)[[1]][, 1]), groups = rownames(ranef(f)[[1]]),
    data = keep(d, name, unique(all.vars(as.formula(formula)))))
}

for (reml in c(TRUE, FALSE)) {
  how <- if (reml) "REML" else "ML"
  linear(paste("sleepstudy", how), sleepstudy, "Reaction ~ Days + (1 | Subject)", "Subject", reml)
  linear(paste("Dyestuff", how), Dyestuff, "Yield ~ 1 + (1 | Batch)", "Batch", reml)
  linear(paste("Dyestuff2", how), Dyestuff2, "Yield ~ 1 + (1 | Batch)", "Batch", reml)
  linear(paste("Pastes", how), Pastes, "strength ~ 1 + (1 | sample)", "sample", reml)
  linear(paste("Penicillin", how), Penicillin, "diameter ~ sample + (1 | plate)", "plate", reml)
  linear(paste("InstEval", how), transform(subset(InstEval, as.integer(as.character(s)) < 41), lectage = paste0("l", lectage), service = paste0("v", service)), "y ~ lectage + service + (1 | s)", "s", reml)
}
# Groups far apart: a standard deviation of 4 of the log odds, of five rows each.
set.seed(1)
far <- data.frame(g = paste0("g", rep(1:60, each = 5)), x = round(rnorm(300), 3))
far$y <- rbinom(300, 1, plogis(-1 + far$x + 4 * rnorm(60)[rep(1:60, each = 5)]))

for (nodes in c(1, 10)) {
  logistic(paste("far", nodes), far, "y ~ x + (1 | g)", "y ~ x", "g", nodes)
  logistic(paste("cbpp", nodes), cbpp, "cbind(incidence, size - incidence) ~ period + (1 | herd)", "incidence ~ period",
           "herd", nodes, "incidence", "size")
  b <- transform(bacteria, y = as.numeric(y == "y"), trt = factor(as.character(trt), levels = sort(levels(trt))))
  logistic(paste("bacteria", nodes), b, "y ~ trt + week + (1 | ID)", "y ~ trt + week", "ID", nodes)
  singular <- transform(b, ID = paste0("g", seq_len(nrow(b)) %% 9))
  logistic(paste("singular", nodes), singular, "y ~ week + (1 | ID)", "y ~ week", "ID", nodes)
}
cat(toJSON(list(R = R.version.string, lme4 = as.character(packageVersion("lme4")), tables = tables, fits = fits), dataframe = "columns", digits = NA,
           auto_unbox = TRUE, pretty = FALSE), "\n")
