# Reference fits of counts with an estimated size, and of ordered classes; writes menu_ordinal.json beside it.
#
#   Rscript tests/oracles/menu_ordinal.R        (R with MASS, ordinal, numDeriv and jsonlite)
#
# Sites are drawn with shares of 10, 20, 30 and 40 %. glm.nb's loop ends at a change of 1e-8 of theta; it is started
# again with a tighter control, and theta and its standard error are those of theta.ml at the fit. polr's Hessian is
# numerical: `std_err` of ordered classes is clm's, whose Hessian is exact, and `polr_std_err` polr's.
suppressMessages({ library(MASS); library(ordinal); library(jsonlite) })

sites <- function(n, seed) {
  set.seed(seed)
  sample(paste0("s", 1:4), n, replace = TRUE, prob = c(.1, .2, .3, .4))
}
columns <- function(data) lapply(data, function(x) if (is.factor(x)) as.character(x) else x)

counts <- function(formula, data, seed, weights = NULL) {
  data <- data[, all.vars(formula)]
  tight <- glm.control(epsilon = 1e-14, maxit = 200)
  fit <- glm.nb(formula, data = data, control = tight, init.theta = 1)
  for (i in 1:50) {
    mu <- fitted(fit)
    size <- theta.ml(fit$y, mu, limit = 200, eps = 1e-14)
    fit <- glm(formula, family = negative.binomial(c(size)), data = data, control = tight)
  }
  size <- theta.ml(fit$y, fitted(fit), limit = 200, eps = 1e-14)
  nb <- glm.nb(formula, data = data, control = tight, init.theta = c(size))
  table <- summary(fit, dispersion = 1)$coefficients
  list(kind = "negative_binomial", formula = paste(deparse(formula), collapse = " "), coef = unname(table[, 1]),
       std_err = unname(table[, 2]), names = rownames(table), size = c(size), size_std_err = attr(size, "SE"),
       log_likelihood = as.numeric(logLik(nb)), deviance = fit$deviance, aic = AIC(nb),
       levels = lapply(Filter(is.factor, data), levels), data = c(columns(data), list(site = sites(nrow(data), seed))))
}

ordered <- function(formula, data, seed, weights = NULL, link = "logit") {
  used <- data[, c(all.vars(formula), weights)]
  used$w <- if (is.null(weights)) rep(1, nrow(used)) else used[[weights]]
  fit <- clm(formula, data = used, weights = w, link = link, control = clm.control(gradTol = 1e-12, maxIter = 200))
  polr_fit <- polr(formula, data = used, weights = w, Hess = TRUE, method = if (link == "logit") "logistic" else link,
                   control = list(reltol = 1e-15, maxit = 1000))
  free <- nominal_test(fit)
  X <- model.matrix(formula, used)[, -1, drop = FALSE]
  y <- as.integer(used[[all.vars(formula)[1]]])
  K <- nlevels(used[[all.vars(formula)[1]]]) - 1; p <- ncol(X)
  F <- if (link == "logit") plogis else pnorm
  surprise <- function(at) {
    cuts <- at[1:K]; beta <- matrix(at[-(1:K)], p, K)
    chances <- F(matrix(cuts, nrow(X), K, byrow = TRUE) - X %*% beta)
    whole <- cbind(0, chances, 1)
    -sum(used$w * log(whole[cbind(seq_along(y), y + 1)] - whole[cbind(seq_along(y), y)]))
  }
  at <- c(fit$alpha, rep(fit$beta, K))
  slope <- numDeriv::grad(surprise, at); curve <- numDeriv::hessian(surprise, at)
  list(kind = if (link == "logit") "ordinal" else paste0("ordinal(link=", link, ")"), formula = deparse(formula),
       weights = weights, coef = unname(c(fit$alpha, fit$beta)), std_err = unname(sqrt(diag(vcov(fit)))),
       names = names(coef(fit)), polr_coef = unname(c(polr_fit$zeta, coef(polr_fit))),
       polr_std_err = unname(summary(polr_fit)$coefficients[c(p + 1:K, 1:p), 2]),
       log_likelihood = as.numeric(logLik(fit)), score = c(slope %*% solve(curve, slope)), score_df = (K - 1) * p,
       nominal = free[-1, c("LRT", "Df")], levels = lapply(Filter(is.factor, used), levels),
       data = c(columns(used), list(site = sites(nrow(used), seed))))
}

data(quine); data(epil); data(housing); data(wine)
epil$lbase <- log(epil$base / 4); epil$lage <- log(epil$age)
found <- list(
  versions = list(R = paste(R.version$major, R.version$minor, sep = "."), MASS = as.character(packageVersion("MASS")),
                  ordinal = as.character(packageVersion("ordinal"))),
  "quine" = counts(Days ~ Eth + Sex + Age + Lrn, quine, 1),
  "quine, interactions" = counts(Days ~ Sex / (Age + Eth * Lrn), quine, 2),
  "epil" = counts(y ~ lbase * trt + lage + V4, epil, 3),
  "housing" = ordered(Sat ~ Infl + Type + Cont, housing, 4, "Freq"),
  "housing, probit" = ordered(Sat ~ Infl + Type + Cont, housing, 5, "Freq", "probit"),
  "wine" = ordered(rating ~ temp + contact, wine, 6)
)
write(toJSON(found, digits = NA, auto_unbox = TRUE, null = "null"), "tests/oracles/menu_ordinal.json")
