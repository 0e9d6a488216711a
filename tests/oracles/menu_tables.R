# Reference curves and log-rank tests: survfit and survdiff of times rounded up to a grid, over four unequal sites.
#
#   Rscript tests/oracles/menu_tables.R        (R with survival and jsonlite)
suppressMessages({ library(survival); library(jsonlite) })

case <- function(data, time, event, by, step, seed, times = NULL) {
  data <- data[complete.cases(data[, c(time, by)]), ]
  set.seed(seed)
  site <- sample(paste0("s", 1:4), nrow(data), replace = TRUE, prob = c(.1, .2, .3, .4))
  t <- data[[time]]; d <- as.numeric(event[as.integer(rownames(data))]); g <- as.character(data[[by]])
  up <- if (is.null(times)) ceiling(t / step) * step else sapply(t, function(x) min(times[times >= x]))
  curve <- function(rows) {
    fit <- survfit(Surv(up[rows], d[rows]) ~ 1)
    list(time = fit$time, at_risk = fit$n.risk, events = fit$n.event, censored = fit$n.censor, survival = fit$surv,
      greenwood = fit$std.err, lower = fit$lower, upper = fit$upper,
      median = unname(summary(fit)$table[c("median", "0.95LCL", "0.95UCL")]))
  }
  test <- function(f) list(observed = if (is.matrix(f$obs)) rowSums(f$obs) else f$obs,
    expected = if (is.matrix(f$exp)) rowSums(f$exp) else f$exp, statistic = f$chisq, df = length(f$n) - 1,
    p_value = f$pvalue)
  list(data = list(time = t, status = d, group = g, site = site), grid = if (is.null(times)) NULL else times,
    step = step, curves = sapply(sort(unique(g)), function(one) curve(g == one), simplify = FALSE), whole = curve(TRUE),
    tests = list(pooled = test(survdiff(Surv(up, d) ~ g)), `stratified by site` = test(survdiff(Surv(up, d) ~ g + strata(site)))))
}

rownames(lung) <- NULL; rownames(veteran) <- NULL
half <- data.frame(time = c(1, 2, 3, 4, 5, 6, 7, 8), status = c(1, 1, 1, 1, 0, 1, 0, 1), g = rep(c("a", "b"), 4))
cases <- list(
  lung = case(lung, "time", lung$status == 2, "sex", 30, 1),
  lung_ecog = case(lung, "time", lung$status == 2, "ph.ecog", 1, 2),
  lung_uneven = case(lung, "time", lung$status == 2, "sex", 0, 3, c(0, 7, 50, 90, 200, 365, 500, 730, 1100)),
  veteran = case(veteran, "time", veteran$status == 1, "celltype", 25, 4),
  veteran_days = case(veteran, "time", veteran$status == 1, "trt", 1, 5),
  half = case(half, "time", half$status == 1, "g", 1, 6))
cases$versions <- list(R = R.version.string, survival = as.character(packageVersion("survival")))
here <- dirname(sub("--file=", "", grep("--file=", commandArgs(), value = TRUE)))
write_json(cases, file.path(here, "menu_tables.json"), digits = NA, auto_unbox = TRUE, na = "null")
