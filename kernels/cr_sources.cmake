# Correctly rounded arithmetic; links GMP and MPFR.
set(CR_SOURCES cr_round.c cr_dot.c cr_interval.c cr_linear.c cr_norm.c cr_elementwise.c cr_softmax.c)
