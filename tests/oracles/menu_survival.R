# Writes menu_survival.json: fits of data sets of R's package survival by coxph with strata(site), and piecewise
# exponential regressions by glm on rows that survSplit made, for test_menu_survival.py.
#   Rscript tests/oracles/menu_survival.R > tests/oracles/menu_survival.json
# `site` splits the rows over four sites of 10, 20, 30 and 40 %; in "lung, institutions" the sites are those of the data.
suppressMessages({library(survival); library(jsonlite)})

invisible(Sys.setlocale("LC_COLLATE", "C"))
suppressWarnings(tight <- coxph.control(eps = 1e-14, toler.chol = 1e-15, iter.max = 100))
fits <- list()

split_rows <- function(d, seed) {
  set.seed(seed)
  n <- nrow(d)
  d$site <- paste0("s", sample(rep(1:4, diff(round(c(0, .1, .3, .6, 1) * n)))))
  d$w <- round(runif(n, 0.5, 3), 2)
  for (name in names(d)) if (is.factor(d[[name]])) d[[name]] <- as.character(d[[name]])
  as.data.frame(d)
}

kept <- function(d, formula, more) d[complete.cases(d[, intersect(names(d), c(all.vars(as.formula(formula)), more))]), ]

cox <- function(name, d, formula, ties = "efron", weights = NULL) {
  d <- kept(d, formula, c("site", weights))
  d$w_ <- if (is.null(weights)) rep(1, nrow(d)) else d[[weights]]
  written <- update(as.formula(formula), . ~ . + strata(site))
  f <- coxph(written, d, weights = w_, ties = ties, control = tight, robust = FALSE)
  # type II: without a term, and those that contain it
  labels <- attr(terms(as.formula(formula)), "term.labels")
  above <- function(one, o) all(strsplit(one, ":")[[1]] %in% strsplit(o, ":")[[1]])
  fit <- function(kept) {
    written <- as.formula(paste(as.character(as.formula(formula))[2], "~", paste(c(kept, "strata(site)"), collapse = " + ")))
    coxph(written, d, weights = w_, ties = ties, control = tight, robust = FALSE)$loglik[2]
  }
  tests <- sapply(labels, function(one) {
    kept <- labels[!sapply(labels, function(o) o != one && above(one, o))]
    2 * (fit(kept) - fit(setdiff(kept, one)))
  })
  base <- basehaz(f, centered = FALSE)
  fits[[name]] <<- list(kind = if (ties == "efron") "cox" else "cox(ties=breslow)", formula = formula,
    weights = weights, coef = unname(coef(f)), std_err = unname(sqrt(diag(f$var))),
    log_likelihood = f$loglik[2], null_log_likelihood = f$loglik[1], df = length(coef(f)),
    lr_test = unname(summary(f)$logtest["test"]), p_value = unname(summary(f)$logtest["pvalue"]),
    n_events = f$nevent, tests = I(unname(tests)), hazard = as.list(tapply(base$hazard, sub(".*=", "", as.character(base$strata)), max)),
    data = d[, intersect(names(d), c(all.vars(as.formula(formula)), "site", weights))])
}

piecewise <- function(name, d, formula, cuts, weights = NULL) {
  d <- kept(d, formula, c("site", weights))
  d$w_ <- if (is.null(weights)) rep(1, nrow(d)) else d[[weights]]
  d$time_ <- d$time; d$event_ <- as.numeric(d$status == max(d$status))
  s <- if (length(cuts)) survSplit(Surv(time_, event_) ~ ., d, cut = cuts, episode = "piece_", start = "begin_")
       else transform(d, begin_ = 0, piece_ = 1)
  s$piece_ <- factor(s$piece_); s$risk_ <- s$time_ - s$begin_
  right <- if (nlevels(s$piece_) > 1) "0 + piece_ +" else ""
  written <- as.formula(paste("event_ ~", right, as.character(as.formula(formula))[3]))
  f <- glm(written, poisson(), s, weights = w_, offset = log(risk_), control = glm.control(1e-15, 100))
  ll <- sum(s$w_ * (s$event_ * (f$linear.predictors - log(s$risk_)) - fitted(f)))
  fits[[name]] <<- list(kind = if (length(cuts)) paste0("piecewise_exponential(cuts=", paste(cuts, collapse = ":"), ")")
    else "piecewise_exponential", cuts = I(cuts), formula = formula, weights = weights, coef = unname(coef(f)),
    std_err = unname(sqrt(diag(vcov(f)))), log_likelihood = ll, df = length(coef(f)) - length(cuts) - 1,
    data = d[, intersect(names(d), c(all.vars(as.formula(formula)), "site", weights))])
}

lung <- split_rows(survival::lung, 1); veteran <- split_rows(survival::veteran, 2)
ovarian <- split_rows(survival::ovarian, 3)
heart <- split_rows(transform(survival::heart, transplant = as.numeric(transplant) - 1), 4)
by_inst <- transform(survival::lung, site = ifelse(is.na(inst), NA, paste0("i", inst)))

cox("lung", lung, "Surv(time, status == 2) ~ age + sex + ph.ecog")
cox("lung, breslow", lung, "Surv(time, status == 2) ~ age + sex + ph.ecog", "breslow")
cox("lung, weights", lung, "Surv(time, status == 2) ~ age + sex + wt.loss", "efron", "w")
cox("lung, institutions", by_inst, "Surv(time, status == 2) ~ age + sex + ph.karno")
cox("veteran", veteran, "Surv(time, status) ~ karno + celltype + trt + age")
cox("veteran, breslow", veteran, "Surv(time, status) ~ karno + celltype + trt + age", "breslow", "w")
cox("ovarian", ovarian, "Surv(futime, fustat) ~ age + rx")
cox("heart", heart, "Surv(start, stop, event) ~ age + year + surgery + transplant")
cox("heart, breslow", heart, "Surv(start, stop, event) ~ age + year + surgery + transplant", "breslow")
cox("heart, weights", heart, "Surv(start, stop, event) ~ age + year + surgery * transplant", "efron", "w")
piecewise("lung, pieces", lung, "Surv(time, status == 2) ~ age + sex + ph.ecog", c(90, 180, 365))
piecewise("veteran, pieces", veteran, "Surv(time, status) ~ karno + celltype + trt", c(30, 90, 180), "w")
piecewise("lung, exponential", lung, "Surv(time, status == 2) ~ age + sex", numeric(0))

lines <- sapply(names(fits), function(n) paste0(toJSON(n, auto_unbox = TRUE), ": ",
  toJSON(fits[[n]], auto_unbox = TRUE, digits = I(17), dataframe = "columns", null = "null", na = "null")))
about <- toJSON(list(R = as.character(getRversion()), survival = as.character(packageVersion("survival"))),
                auto_unbox = TRUE)
cat("{\n\"versions\": ", about, ",\n", paste(lines, collapse = ",\n"), "\n}\n", sep = "")
