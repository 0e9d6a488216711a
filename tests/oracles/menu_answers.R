# Reference answers of fits: predictions with errors, average effects, hypotheses, model comparisons, VIF, Firth.
#
#   Rscript tests/oracles/menu_answers.R        (R with MASS, car, nnet, sandwich, brglm2 and jsonlite)
#
# Average effects are written out here with analytic derivatives: g = mean of dμ/dx, its gradient in β, and sqrt(g'Vg).
# The penalised profile of Firth is optimised by nlm on log-likelihood + ½ log det(X'WX), X all columns.
suppressMessages({ library(MASS); library(car); library(sandwich); library(jsonlite) })

sites <- function(n, seed) {
  set.seed(seed)
  sample(paste0("s", 1:4), n, replace = TRUE, prob = c(.1, .2, .3, .4))
}
columns <- function(data, seed) c(lapply(data, function(x) if (is.factor(x)) as.character(x) else x), list(site = sites(nrow(data), seed)))
tight <- glm.control(epsilon = 1e-14, maxit = 100)
se <- function(way, V) sqrt(c(t(way) %*% V %*% way))

b <- birthwt[, c("low", "age", "lwt", "race", "smoke")]
b$race <- factor(c("white", "black", "other")[b$race])
fit <- glm(low ~ age * smoke + lwt + race, binomial, b, control = tight)
small <- glm(low ~ age + lwt, binomial, b, control = tight)
V <- vcov(fit); X <- model.matrix(fit); p <- fitted(fit); beta <- coef(fit)
link <- predict(fit, se.fit = TRUE); response <- predict(fit, se.fit = TRUE, type = "response")
d <- p * (1 - p); dd <- d * (1 - 2 * p)
slope_x <- beta["age"] + beta["age:smoke"] * b$smoke
unit <- matrix(0, nrow(b), length(beta), dimnames = list(NULL, names(beta))); unit[, "age"] <- 1; unit[, "age:smoke"] <- b$smoke
age <- list(mean(d * slope_x), se(colMeans(dd * slope_x * X + d * unit), V))
at <- function(level) { other <- b; other$race <- factor(level, levels(b$race)); model.matrix(~ age * smoke + lwt + race, other) }
contrast <- function(level) {
  A <- at(level); B <- at("black"); pa <- plogis(A %*% beta); pb <- plogis(B %*% beta)
  list(mean(pa - pb), se(colMeans(c(pa * (1 - pa)) * A - c(pb * (1 - pb)) * B), V))
}
logistic <- list(
  formula = "low ~ age*smoke + lwt + race", smaller = "low ~ age + lwt", data = columns(b, 1),
  link = list(link$fit, link$se.fit), response = list(response$fit, response$se.fit),
  prediction = list(mean(p), se(colMeans(d * X), V)), age = age, other = contrast("other"), white = contrast("white"),
  ninety = unname(confint.default(fit, level = .9)),
  hypothesis = { h <- linearHypothesis(fit, c("age = 0", "raceother - racewhite = 0.5")); c(h$Chisq[2], h$Df[2]) },
  robust = { h <- linearHypothesis(fit, c("lwt = 0", "smoke = 0"), vcov. = vcovHC(fit, "HC0")); h$Chisq[2] },
  anova = { a <- anova(small, fit, test = "LRT"); c(a$Deviance[2], a$Df[2]) },
  vif = unname(vif(glm(low ~ age + lwt + race + smoke, binomial, b, control = tight))[, 1]))

w <- warpbreaks
pois <- glm(breaks ~ wool * tension, poisson, w, control = tight)
response <- predict(pois, se.fit = TRUE, type = "response")
poisson <- list(formula = "breaks ~ wool*tension", data = columns(w, 2), response = list(response$fit, response$se.fit))

duncan <- data.frame(lapply(Duncan, function(x) if (is.factor(x)) as.character(x) else x), stringsAsFactors = TRUE)
lin <- lm(prestige ~ income + education + type, duncan); low <- lm(prestige ~ income, duncan)
inter <- predict(lin, interval = "confidence", level = .8, se.fit = TRUE)
linear <- list(formula = "prestige ~ income + education + type", smaller = "prestige ~ income", data = columns(duncan, 3),
  response = list(inter$fit[, 1], inter$se.fit), low = inter$fit[, 2],
  hypothesis = { h <- linearHypothesis(lin, c("income = education", "typeprof = 2*typewc")); c(h$F[2], h$Df[2], h$Res.Df[2]) },
  anova = { a <- anova(low, lin); c(a$F[2], a$Df[2]) }, vif = unname(vif(lin)[, 1]))

of_gamma <- function(formula, link) glm(formula, Gamma(link), trees, control = tight)
gamma <- c(list(larger = "Volume ~ Girth + Height", smaller = "Volume ~ Girth", data = columns(trees, 7)),
  sapply(c("log", "inverse"), function(link) {
    a <- anova(of_gamma(Volume ~ Girth, link), of_gamma(Volume ~ Girth + Height, link), test = "F")
    c(a$F[2], a$`Pr(>F)`[2])
  }, simplify = FALSE))

multi <- nnet::multinom(race ~ age + lwt, b, trace = FALSE, reltol = 1e-16, maxit = 1000, Hess = TRUE)
multinomial <- list(formula = "race ~ age + lwt", data = columns(b, 4), chances = unname(predict(multi, type = "probs")))

e <- brglm2::endometrial
X <- model.matrix(HG ~ NV + PI + EH, e); y <- e$HG
surprise <- function(beta) {
  f <- X %*% beta; pr <- plogis(f)
  -(sum(y * plogis(f, log.p = TRUE) + (1 - y) * plogis(-f, log.p = TRUE)) +
      0.5 * determinant(crossprod(X, c(pr * (1 - pr)) * X))$modulus)
}
best <- function(j, value, start) {
  free <- setdiff(seq_len(ncol(X)), j)
  found <- nlm(function(at) { beta <- numeric(ncol(X)); beta[free] <- at; beta[j] <- value; surprise(beta) }, start[free],
               gradtol = 1e-12, steptol = 1e-14, iterlim = 1000)
  found$minimum
}
full <- glm(HG ~ NV + PI + EH, binomial, e, method = brglm2::brglmFit, type = "AS_mean", epsilon = 1e-14, maxit = 1000)
top <- surprise(coef(full))
tests <- sapply(2:4, function(j) 2 * (best(j, 0, coef(full)) - top))
ends <- sapply(2:4, function(j) sapply(c(-1, 1), function(side) {
  s <- sqrt(vcov(full)[j, j]); at <- coef(full)[j]
  reach <- side * s; while (2 * (best(j, at + reach, coef(full)) - top) < qchisq(.95, 1) + 1) reach <- reach * 1.5
  uniroot(function(b) 2 * (best(j, b, coef(full)) - top) - qchisq(.95, 1), sort(c(at, at + reach)), tol = 1e-10)$root
}))
firth <- list(formula = "HG ~ NV + PI + EH", data = columns(e, 5), coef = unname(coef(full)), lr = tests, ends = t(ends))

calibration <- {
  set.seed(6); lp <- predict(fit); chance <- plogis(0.8 * lp + 0.3); event <- rbinom(length(lp), 1, chance)
  own <- glm(event ~ lp, binomial, control = tight); shift <- glm(event ~ offset(lp), binomial, control = tight)
  list(chance = plogis(lp), event = event, slope = unname(coef(own)[2]), slope_se = sqrt(vcov(own)[2, 2]),
       intercept = unname(coef(shift)), intercept_se = sqrt(vcov(shift)[1, 1]))
}
found <- list(versions = list(R = paste(R.version$major, R.version$minor, sep = "."), car = as.character(packageVersion("car")),
  brglm2 = as.character(packageVersion("brglm2"))), logistic = logistic, poisson = poisson, linear = linear,
  multinomial = multinomial, gamma = gamma, firth = firth, calibration = calibration)
write(toJSON(found, digits = NA, auto_unbox = TRUE), "tests/oracles/menu_answers.json")
