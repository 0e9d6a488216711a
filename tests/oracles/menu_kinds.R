# Reference fits of generalised linear models of other distributions and links; writes menu_kinds.json beside it.
#
#   Rscript tests/oracles/menu_kinds.R        (R with MASS and jsonlite)
#
# Sites are drawn with shares of 10, 20, 30 and 40 %. Identity links start at the mean of y.
suppressMessages({ library(MASS); library(jsonlite) })

sites <- function(n, seed) {
  set.seed(seed)
  sample(paste0("s", 1:4), n, replace = TRUE, prob = c(.1, .2, .3, .4))
}
columns <- function(data) lapply(data, function(x) if (is.factor(x)) as.character(x) else x)
case <- function(kind, formula, family, data, seed, trials = NULL, start = NULL, model = formula) {
  fit <- glm(model, family, data, start = start, control = glm.control(epsilon = 1e-14, maxit = 200))
  table <- summary(fit)$coefficients
  used <- data[, unique(c(intersect(all.vars(formula), names(data)), trials))]
  list(kind = kind, formula = paste(deparse(formula), collapse = " "), trials = trials, names = rownames(table),
       coef = unname(table[, 1]), std_err = unname(table[, 2]), deviance = deviance(fit), null_deviance = fit$null.deviance,
       dispersion = summary(fit)$dispersion, log_likelihood = as.numeric(logLik(fit)), p_value = unname(table[, 4]),
       levels = lapply(Filter(is.factor, used), levels), data = c(columns(used), list(site = sites(nrow(used), seed))))
}

u <- c(5, 10, 15, 20, 30, 40, 60, 80, 100)
clotting <- data.frame(u = rep(u, 2), time = c(118, 58, 42, 35, 27, 25, 21, 19, 18, 69, 35, 26, 21, 18, 16, 13, 12, 12),
                       lot = factor(rep(c("one", "two"), each = 9)))
clotting <- clotting[rep(1:18, 2), ]; clotting$time <- clotting$time * rep(c(1, 1.05), each = 18)
budworm <- data.frame(ldose = rep(0:5, 4), dead = c(1, 4, 9, 13, 18, 20, 0, 2, 6, 10, 12, 16, 2, 5, 8, 12, 17, 19, 1, 3, 5, 9, 13, 15),
                      sex = factor(rep(c("M", "F", "M", "F"), each = 6)), n = 20)
b <- birthwt[, c("low", "age", "lwt", "smoke")]
found <- list(
  versions = list(R = paste(R.version$major, R.version$minor, sep = "."), MASS = as.character(packageVersion("MASS"))),
  gamma = case("gamma", time ~ log(u) * lot, Gamma, clotting, 1),
  "gamma, log" = case("gamma(link=log)", Volume ~ log(Girth) + log(Height), Gamma("log"), trees, 2),
  "gamma, identity" = case("gamma(link=identity)", Volume ~ Girth, Gamma("identity"), trees, 3, start = c(-40, 5.5)),
  "inverse Gaussian" = case("inverse_gaussian", time ~ log(u) + lot, inverse.gaussian, clotting, 4),
  "inverse Gaussian, log" = case("inverse_gaussian(link=log)", Volume ~ log(Girth), inverse.gaussian("log"), trees, 5),
  "Gaussian, log" = case("gaussian", Volume ~ log(Girth) + log(Height), gaussian("log"), trees, 6, start = c(-6, 2, 1)),
  probit = case("probit", low ~ age + lwt + smoke, binomial("probit"), b, 7),
  "complementary log-log" = case("cloglog", low ~ age + lwt + smoke, binomial("cloglog"), b, 8),
  "log-binomial" = case("logistic(link=log)", low ~ lwt + smoke, binomial("log"), b, 9, start = c(-1, 0, 0)),
  "probit of trials" = case("binomial(link=probit)", dead ~ ldose * sex, binomial("probit"), budworm, 10, "n",
                            model = cbind(dead, n - dead) ~ ldose * sex),
  "cloglog of trials" = case("binomial(link=cloglog)", dead ~ ldose + sex, binomial("cloglog"), budworm, 11, "n",
                             model = cbind(dead, n - dead) ~ ldose + sex),
  "quasi-binomial" = case("quasi", dead ~ ldose + sex, quasibinomial, budworm, 12, "n", model = cbind(dead, n - dead) ~ ldose + sex),
  "Poisson, identity" = case("poisson(link=identity)", breaks ~ wool + tension, poisson("identity"), warpbreaks, 13),
  "Poisson, root" = case("poisson(link=sqrt)", Days ~ Eth + Age, poisson("sqrt"), quine, 14)
)
write(toJSON(found, digits = NA, auto_unbox = TRUE, null = "null"), "tests/oracles/menu_kinds.json")
