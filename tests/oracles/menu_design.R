# Reference columns and fits of natural splines and orthogonal polynomials, over four unequal sites.
#
#   Rscript tests/oracles/menu_design.R        (R with MASS, survival and jsonlite)
#
# Site s1 lacks the upper part of the range of `cut`. `columns` are those of model.matrix without the intercept.
suppressMessages({ library(splines); library(MASS); library(survival); library(jsonlite) })

tight <- glm.control(epsilon = 1e-14, maxit = 100)
case <- function(formula, ours, data, kind, cut, seed) {
  family <- list(logistic = binomial(), poisson = poisson(), linear = gaussian())[[kind]]
  set.seed(seed)
  site <- sample(paste0("s", 1:4), nrow(data), replace = TRUE, prob = c(.1, .2, .3, .4))
  x <- data[[cut]]
  site[site == "s1" & !is.na(x) & x > quantile(x, .6, na.rm = TRUE)] <- "s4"
  fit <- glm(formula, family, data, control = tight)
  used <- all.vars(formula)
  list(formula = ours, kind = kind, data = c(as.list(data[used]), list(site = site)),
    columns = unname(apply(model.matrix(fit)[, -1, drop = FALSE], 2, identity, simplify = FALSE)),
    coef = unname(coef(fit)), std_err = unname(sqrt(diag(vcov(fit)))), log_likelihood = c(logLik(fit)),
    fitted = unname(head(fitted(fit), 5)))
}

quakes <- quakes[seq(1, 1000, 6), ]; Boston <- Boston[seq(1, 506, 3), ]
birthwt$race <- c("white", "black", "other")[birthwt$race]
cases <- list(
  beyond = case(low ~ ns(lwt, knots = c(110, 140), Boundary.knots = c(95, 200)) + age,
    "low ~ ns(lwt, knots=(110, 140), lower_bound=95, upper_bound=200) + age", birthwt, "logistic", "lwt", 1),
  one_knot = case(low ~ ns(age, knots = 22, Boundary.knots = c(14, 45)) * smoke,
    "low ~ ns(age, knots=(22,), lower_bound=14, upper_bound=45)*smoke", birthwt, "logistic", "age", 2),
  no_knot = case(low ~ ns(age, 1) + race, "low ~ ns(age, 1) + race", birthwt, "logistic", "lwt", 3),
  degrees = case(low ~ ns(lwt, df = 4) + poly(age, 3), "low ~ ns(lwt, df=4) + poly(age, 3)", birthwt, "logistic", "age", 4),
  inner = case(medv ~ ns(lstat, df = 5, Boundary.knots = c(3, 25)) + poly(log(crim), 2),
    "medv ~ ns(lstat, df=5, lower_bound=3, upper_bound=25) + poly(log(crim), 2)", Boston, "linear", "lstat", 5),
  fifth = case(medv ~ poly(lstat, 5) + ns(rm, df = 3), "medv ~ poly(lstat, 5) + ns(rm, df=3)", Boston, "linear", "lstat", 6),
  far = case(stations ~ poly(long, 4) + ns(mag, df = 5), "stations ~ poly(long, 4) + ns(mag, df=5)", quakes, "poisson", "long", 7),
  crossed = case(breaks ~ poly(speed, 2) * wool, "breaks ~ poly(speed, 2)*wool",
    transform(warpbreaks, speed = rep(cars$speed, 2)[1:54], wool = as.character(wool)), "poisson", "speed", 8),
  few = case(stations ~ poly(mag10, 2), "stations ~ poly(mag10, 2)", transform(quakes, mag10 = round(mag)), "poisson", "mag10", 9),
  missing = case(Ozone ~ poly(Temp, 3) + ns(Wind, knots = c(8, 12), Boundary.knots = c(1, 21)),
    "Ozone ~ poly(Temp, 3) + ns(Wind, knots=(8, 12), lower_bound=1, upper_bound=21)", airquality, "linear", "Temp", 10),
  null_logistic = case(low ~ 1, "low ~ 1", birthwt, "logistic", "low", 11),
  null_poisson = case(stations ~ 1, "stations ~ 1", quakes, "poisson", "mag", 12),
  null_linear = case(medv ~ 1, "medv ~ 1", Boston, "linear", "medv", 13))
cases$versions <- list(R = R.version.string, MASS = as.character(packageVersion("MASS")))
here <- dirname(sub("--file=", "", grep("--file=", commandArgs(), value = TRUE)))
write_json(cases, file.path(here, "menu_design.json"), digits = NA, auto_unbox = TRUE, na = "null")
