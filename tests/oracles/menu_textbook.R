# Reference fits of textbook examples, as a new user would repeat them; writes menu_textbook.json beside it.
#
#   Rscript tests/oracles/menu_textbook.R        (R with MASS, survival, lme4, ordinal, AER, car and jsonlite)
#
# Three unequal sites, with shares of 15, 30 and 55 %; groups stay together. `line` is the linear predictor of the
# first row with its standard error, and `joint` a Wald test of several coefficients together.
suppressMessages({ library(MASS); library(survival); library(lme4); library(ordinal); library(AER); library(jsonlite) })

sites <- function(keys, seed) {
  set.seed(seed)
  one <- unique(keys)
  sample(c("east", "north", "west"), length(one), replace = TRUE, prob = c(.15, .3, .55))[match(keys, one)]
}
columns <- function(data) lapply(data, function(x) if (is.factor(x)) as.character(x) else x)
joint <- function(coef, cov, which) c(coef[which] %*% solve(cov[which, which], coef[which]))

case <- function(kind, formula, fit, data, coef, cov, rest = list(), log_likelihood = as.numeric(logLik(fit)), ...) {
  which <- grepl(list(...)$test, names(coef))
  c(list(kind = kind, formula = formula, coef = unname(coef), std_err = unname(sqrt(diag(cov))), names = names(coef),
         log_likelihood = log_likelihood, joint = joint(coef, cov, which), joint_df = sum(which), test = list(...)$test), rest,
    list(levels = lapply(Filter(is.factor, data), levels), data = columns(data)))
}
line <- function(fit, data, ...) unname(unlist(predict(fit, data[1, ], se.fit = TRUE, ...)[1:2]))

tight <- glm.control(epsilon = 1e-14, maxit = 200)
exact <- coxph.control(eps = 1e-13, toler.chol = 1e-15, iter.max = 100)
found <- list(versions = list(R = paste(R.version$major, R.version$minor, sep = "."),
                              survival = as.character(packageVersion("survival")),
                              MASS = as.character(packageVersion("MASS")), lme4 = as.character(packageVersion("lme4")),
                              ordinal = as.character(packageVersion("ordinal")), AER = as.character(packageVersion("AER"))))

pbc <- survival::pbc[, c("time", "status", "age", "edema", "bili", "albumin", "protime", "sex", "stage")]
pbc$site <- sites(seq_len(nrow(pbc)), 1)
pbc$stage[pbc$site == "east" & pbc$stage == 1] <- NA                        # a level missing at a site
fit <- coxph(Surv(time, status == 2) ~ age + log(bili) + log(albumin) + sex + factor(stage) + strata(site), pbc, control = exact)
found$pbc <- case("cox", "Surv(time, status == 2) ~ age + log(bili) + log(albumin) + sex + C(stage)", fit, pbc, coef(fit),
                  vcov(fit), list(rows = fit$n), fit$loglik[2], test = "stage")

veteran <- survival::veteran[, c("time", "status", "trt", "celltype", "karno")]
veteran$site <- sites(seq_len(nrow(veteran)), 2)
fit <- coxph(Surv(time, status) ~ trt * karno + celltype + strata(site), veteran, control = exact)
found$veteran <- case("cox", "Surv(time, status) ~ trt * karno + celltype", fit, veteran, coef(fit), vcov(fit), list(),
                      fit$loglik[2], test = "celltype")

ships <- subset(MASS::ships, service > 0)
ships$site <- sites(seq_len(nrow(ships)), 3)
fit <- glm(incidents ~ type + factor(year) + factor(period) + offset(log(service)), poisson, ships, control = tight)
found$ships <- case("poisson", "incidents ~ type + C(year) + C(period) + offset(log(service))", fit, ships, coef(fit),
                    vcov(fit), list(line = line(fit, ships), dispersion = sum(resid(fit, "pearson")^2) / df.residual(fit)),
                    test = "type")

Insurance <- MASS::Insurance
Insurance$Group <- factor(as.character(Insurance$Group), levels(Insurance$Group))
Insurance$Age <- factor(as.character(Insurance$Age), levels(Insurance$Age))
Insurance$site <- sites(seq_len(nrow(Insurance)), 11)
fit <- glm(Claims ~ District + Group + Age + offset(log(Holders)), poisson, Insurance, control = tight)
found$Insurance <- case("poisson", "Claims ~ District + Group + Age + offset(log(Holders))", fit, Insurance, coef(fit),
                        vcov(fit), list(line = line(fit, Insurance)), test = "Group")

snails <- MASS::snails
snails$site <- sites(seq_len(nrow(snails)), 4)
fit <- glm(cbind(Deaths, N - Deaths) ~ Species + Exposure + Rel.Hum + Temp, binomial, snails, control = tight)
found$snails <- case("logistic", "Deaths ~ Species + Exposure + Rel.Hum + Temp", fit, snails, coef(fit), vcov(fit),
                     list(line = line(fit, snails), trials = "N"), test = "Rel|Temp")
fit <- glm(cbind(Deaths, N - Deaths) ~ Species + Exposure + Rel.Hum + Temp, binomial("cloglog"), snails, control = tight)
found[["snails, cloglog"]] <- case("cloglog", found$snails$formula, fit, snails, coef(fit), vcov(fit),
                                   list(line = line(fit, snails), trials = "N"), test = "Rel|Temp")

Boston <- MASS::Boston[, c("medv", "rm", "lstat", "chas", "rad")]
Boston$site <- sites(seq_len(nrow(Boston)), 5)
fit <- glm(medv ~ rm + log(lstat) + chas + factor(rad), Gamma("log"), Boston, control = tight)
found$Boston <- case("gamma(link=log)", "medv ~ rm + log(lstat) + chas + C(rad)", fit, Boston, coef(fit), vcov(fit),
                     list(line = line(fit, Boston), dispersion = summary(fit)$dispersion), test = "rad")

data(RecreationDemand)
RecreationDemand$site <- sites(seq_len(nrow(RecreationDemand)), 6)
fit <- glm.nb(trips ~ quality + ski + income + userfee + costC + costS + costH, RecreationDemand, control = tight)
nb <- fit
for (i in 1:50) {
  size <- theta.ml(fit$y, fitted(fit), limit = 200, eps = 1e-14)
  fit <- suppressWarnings(glm(formula(nb), family = negative.binomial(c(size)), data = RecreationDemand, start = coef(fit),
                              control = glm.control(epsilon = 1e-300, maxit = 30)))  # scoring ends where it rounds
}
table <- summary(fit, dispersion = 1)
found$RecreationDemand <- case("negative_binomial", paste(deparse(formula(nb)), collapse = " "), nb, RecreationDemand, coef(fit),
                               table$cov.scaled, list(line = line(fit, RecreationDemand, dispersion = 1), size = c(size),
                               size_std_err = attr(size, "SE")), test = "cost")

survey <- na.omit(MASS::survey[, c("Exer", "Sex", "Pulse", "Smoke", "Age")])
survey$Exer <- factor(as.character(survey$Exer), c("None", "Some", "Freq"))
survey$site <- sites(seq_len(nrow(survey)), 7)
fit <- clm(Exer ~ Sex + Pulse + Smoke, data = survey, control = clm.control(gradTol = 1e-12, maxIter = 200))
found$survey <- case("ordinal", "Exer ~ Sex + Pulse + Smoke", fit, survey, coef(fit), vcov(fit),
                     list(chances = c(predict(fit, survey[1, c("Sex", "Pulse", "Smoke")])$fit)), test = "Smoke")

petrol <- MASS::petrol
petrol$site <- sites(petrol$No, 9)
fit <- lmer(Y ~ SG + VP + V10 + EP + (1 | No), petrol, control = lmerControl(optCtrl = list(xtol_abs = 1e-13, ftol_abs = 1e-15)))
found$petrol <- case("mixed_linear", "Y ~ SG + VP + V10 + EP + (1 | No)", fit, petrol, fixef(fit), as.matrix(vcov(fit)),
                     list(spread = c(as.data.frame(VarCorr(fit))$sdcor)), test = "SG|VP")

esoph <- datasets::esoph
for (name in c("agegp", "alcgp", "tobgp")) esoph[[name]] <- factor(as.character(esoph[[name]]), levels(esoph[[name]]))
esoph$n <- esoph$ncases + esoph$ncontrols
esoph$site <- sites(seq_len(nrow(esoph)), 10)
fit <- glm(cbind(ncases, ncontrols) ~ agegp + alcgp + tobgp, binomial, esoph, control = tight)
found$esoph <- case("logistic", "ncases ~ agegp + alcgp + tobgp", fit, esoph, coef(fit), vcov(fit),
                    list(line = line(fit, esoph), trials = "n"), test = "tobgp")

write(toJSON(found, digits = NA, auto_unbox = TRUE, null = "null", na = "null"), "tests/oracles/menu_textbook.json")
if (length(commandArgs(TRUE))) for (name in names(found)[-1])
  write.csv(as.data.frame(found[[name]]$data), file.path(commandArgs(TRUE), paste0(sub(", ", "_", name), ".csv")), row.names = FALSE, quote = TRUE)
