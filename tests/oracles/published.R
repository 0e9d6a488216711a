# Writes published.json: fits of public data sets by R's glm, lm and nnet::multinom, for test_published_fits.py, and of
# logistic and Poisson regressions anova(small, big, test = "Rao") of each term, for test_score_tests.py: big is the
# model without the terms that contain it (type II), small is big without it.
#   Rscript tests/oracles/published.R tests/oracles/published.json > new.json
# Data sets are those of R's packages datasets and MASS. poisson_sim is UCLA's (Institute for Digital Research and
# Education, "Poisson regression"), simulated for teaching, and stands in published.json alone.
suppressMessages({library(MASS); library(nnet); library(jsonlite)})

invisible(Sys.setlocale("LC_COLLATE", "C"))
tight <- glm.control(epsilon = 1e-15, maxit = 100)
kinds <- list(logistic = binomial(), poisson = poisson(), linear = gaussian())
fits <- list()

# Factors become text, whose levels R and the library sort alike; a factor of numbers gets a letter in front.
plain <- function(d) {
  for (n in names(d)) if (is.factor(d[[n]])) d[[n]] <- as.character(d[[n]])
  as.data.frame(d)
}

rao <- function(f, response, kind, d) {
  t <- terms(f); labels <- attr(t, "term.labels"); members <- attr(t, "factors") > 0
  known <- rownames(members)[attr(t, "offset")]
  fit <- function(kept) {
    written <- paste(response, "~", paste(c("1", kept, known), collapse = " + "))
    eval(bquote(glm(.(as.formula(written)), kinds[[.(kind)]], d, weights = w_, control = tight)))
  }
  one <- function(label) {
    members_of <- rownames(members)[members[, label]]
    above <- sapply(labels, function(o) o != label && all(members[members_of, o]))
    kept <- labels[!above]
    found <- anova(fit(setdiff(kept, label)), fit(kept), test = "Rao")
    found$Rao[2]
  }
  unname(sapply(labels, one))
}

add <- function(name, data, kind, formula, weights = NULL) {
  d <- plain(data)
  d <- d[, intersect(names(d), c(all.vars(as.formula(formula)), weights)), drop = FALSE]
  d$w_ <- if (is.null(weights)) rep(1, nrow(d)) else d[[weights]]
  if (kind == "multinomial") {
    f <- multinom(as.formula(formula), d, weights = w_, Hess = TRUE, trace = FALSE, reltol = 1e-16, abstol = 0,
                  maxit = 1000)
    s <- summary(f)
    coef <- c(t(s$coefficients)); se <- c(t(s$standard.errors))
    rest <- list(deviance = f$deviance)
  } else {
    if (kind == "logistic") d$y_ <- as.numeric(as.factor(d[[all.vars(as.formula(formula))[1]]])) - 1
    g <- if (kind == "logistic") update(as.formula(formula), y_ ~ .) else as.formula(formula)
    f <- glm(g, kinds[[kind]], d, weights = w_, control = tight)
    s <- summary(f)
    coef <- s$coefficients[, 1]; se <- s$coefficients[, 2]
    rest <- list(deviance = f$deviance, null_deviance = f$null.deviance, log_likelihood = as.numeric(logLik(f)),
                 df_residual = f$df.residual)
    if (kind != "linear") rest$rao <- I(rao(f, all.vars(g)[1], kind, d))
  }
  d$w_ <- d$y_ <- NULL
  fits[[name]] <<- c(list(kind = kind, formula = formula, weights = weights, coef = unname(coef), std_err = unname(se)),
                     rest, list(data = d))
}

grouped <- function(d, yes, no) {
  rest <- setdiff(names(d), c(yes, no))
  rbind(cbind(d[rest], y = 1, n = d[[yes]]), cbind(d[rest], y = 0, n = d[[no]]))
}

add("trees", trees, "linear", "Volume ~ Girth")
add("poisson_sim", as.data.frame(fromJSON(commandArgs(TRUE)[1])$poisson_sim$data), "poisson",
    "num_awards ~ prog + math")
add("birthwt", transform(birthwt, race = paste0("r", race)), "logistic", "low ~ age + lwt + race + smoke + ptl + ht + ui + ftv")
add("birthwt, grams", transform(birthwt, race = paste0("r", race)), "linear", "bwt ~ age + lwt + race + smoke + ht + ui")
add("Pima.tr", Pima.tr, "logistic", "type ~ npreg + glu + bp + skin + bmi + ped + age")
add("quine", subset(quine, Age != "F3"), "poisson", "Days ~ Eth + Sex + Age + Lrn")
add("epil", epil, "poisson", "y ~ base + trt + age + V4 + base:trt")
add("warpbreaks", warpbreaks, "poisson", "breaks ~ wool * tension")
add("mtcars", transform(mtcars, cyl = paste0("c", cyl)), "linear", "mpg ~ wt + hp + cyl")
add("mtcars, engines", mtcars, "logistic", "vs ~ wt + disp")
add("esoph", grouped(transform(esoph, agegp = as.character(agegp), alcgp = as.character(alcgp)), "ncases", "ncontrols"),
    "logistic", "y ~ agegp + alcgp", "n")
add("infert", infert, "logistic", "case ~ age + parity + education + spontaneous + induced")
add("anorexia", anorexia, "linear", "Postwt ~ Prewt + Treat + offset(Prewt)")
add("bacteria", bacteria, "logistic", "y ~ trt + week")
add("menarche", grouped(transform(menarche, No = Total - Menarche)[c("Age", "Menarche", "No")], "Menarche", "No"),
    "logistic", "y ~ Age", "n")
add("Insurance", transform(Insurance, District = paste0("d", District)), "poisson",
    "Claims ~ District + Group + Age + offset(log(Holders))")
add("InsectSprays", InsectSprays, "poisson", "count ~ spray")
add("swiss", swiss, "linear", "Fertility ~ Agriculture + Examination + Education + Catholic + Infant.Mortality")
add("chickwts", chickwts, "linear", "weight ~ feed")
add("UCBAdmissions", as.data.frame(UCBAdmissions), "logistic", "Admit ~ Gender + Dept", "Freq")
add("housing", housing, "multinomial", "Sat ~ Infl + Type + Cont", "Freq")
add("iris, two species of three", subset(iris, Species != "setosa"), "logistic", "Species ~ Sepal.Length + Sepal.Width")

lines <- sapply(names(fits), function(n) paste0(toJSON(n, auto_unbox = TRUE), ": ",
  toJSON(fits[[n]], auto_unbox = TRUE, digits = I(17), dataframe = "columns", null = "null")))
cat("{\n", paste(lines, collapse = ",\n"), "\n}\n", sep = "")
