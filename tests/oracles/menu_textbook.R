# Textbook examples of R over three unequal sites; writes menu_textbook.json beside it.
#
#   Rscript tests/oracles/menu_textbook.R     (R with MASS, survival, AER, carData, ordinal, lme4 and jsonlite)
#
# Venables and Ripley (snails, petrol), Kleiber and Zeileis (RecreationDemand), Therneau and Grambsch (pbc), Fox and
# Weisberg (WVS, Transact). Sites hold 15, 35 and 50 % of the rows, of petrol whole crudes.
suppressMessages({ library(MASS); library(survival); library(AER); library(ordinal); library(lme4); library(jsonlite) })

sites <- function(n, seed) {
  set.seed(seed)
  sample(paste0("s", 1:3), n, replace = TRUE, prob = c(.15, .35, .5))
}
case <- function(kind, formula, data, coef, std_err, site = sites(nrow(data), 1), ...) {
  list(kind = kind, formula = formula, coef = unname(coef), std_err = unname(std_err), ...,
       levels = lapply(Filter(is.factor, data), levels),
       data = c(lapply(data, function(x) if (is.factor(x)) as.character(x) else x), list(site = site)))
}
tight <- glm.control(epsilon = 1e-14, maxit = 100)

s <- glm(cbind(Deaths, N - Deaths) ~ Exposure + Rel.Hum + Temp + Species, binomial("probit"), snails, control = tight)
data("RecreationDemand")
r <- RecreationDemand[, c("trips", "quality", "ski", "income", "costH")]
n <- glm.nb(trips ~ quality + ski + income + costH, r, control = tight, init.theta = .7)
for (i in 1:60) n <- glm(trips ~ quality + ski + income + costH, negative.binomial(c(theta.ml(n$y, fitted(n), limit = 200, eps = 1e-14))), r, control = tight)
p <- pbc[1:312, c("time", "status", "age", "edema", "bili", "protime", "albumin")]
site <- sites(nrow(p), 3)
ph <- coxph(Surv(time, status == 2) ~ age + edema + log(bili) + log(protime) + log(albumin) + strata(site), p, control = coxph.control(eps = 1e-14, iter.max = 50))
w <- carData::WVS; w <- w[seq(1, nrow(w), 4), ]
o <- clm(poverty ~ gender + religion + degree + country + age, data = w, control = clm.control(gradTol = 1e-11))
crude <- petrol; place <- c(A = "s1", B = "s1", C = "s2", D = "s2", E = "s2", F = "s3", G = "s3", H = "s3", I = "s3", J = "s3")
m <- lmer(Y ~ SG + VP + V10 + EP + (1 | No), crude, control = lmerControl(optCtrl = list(xtol_abs = 1e-14, ftol_abs = 1e-16)))
t <- carData::Transact
g <- glm(time ~ t1 + t2, Gamma("identity"), t, control = tight)
rows <- function(fit) { x <- coef(summary(fit, dispersion = NULL)); x }
found <- list(
  snails = case("logistic(link=probit)", "Deaths ~ Exposure + `Rel.Hum` + Temp + Species", snails, coef(s), coef(summary(s))[, 2], trials = "N", log_likelihood = c(logLik(s))),
  RecreationDemand = case("negative_binomial", "trips ~ quality + ski + income + costH", r, coef(n), coef(summary(n, dispersion = 1))[, 2]),
  pbc = case("cox", "Surv(time, status == 2) ~ age + edema + log(bili) + log(protime) + log(albumin)", p, coef(ph), sqrt(diag(vcov(ph))), site, log_likelihood = ph$loglik[2]),
  WVS = case("ordinal", "poverty ~ gender + religion + degree + country + age", w, coef(o), sqrt(diag(vcov(o))), log_likelihood = c(logLik(o))),
  petrol = case("mixed_linear", "Y ~ SG + VP + V10 + EP + (1 | No)", crude, fixef(m), sqrt(diag(as.matrix(vcov(m)))), unname(place[as.character(crude$No)]), log_likelihood = c(logLik(m))),
  Transact = case("gamma(link=identity)", "time ~ t1 + t2", t, coef(g), coef(summary(g))[, 2], log_likelihood = c(logLik(g))),
  versions = list(R = paste(R.version$major, R.version$minor, sep = ".")))
write(toJSON(found, digits = NA, auto_unbox = TRUE, na = "null"), "tests/oracles/menu_textbook.json")
