# What the verbs share and what can be tested without files.
unit_test(driver_elements SOURCES test_elements.c LIBS driver formats)
unit_test(driver_ids SOURCES test_ids.c LIBS driver formats)
unit_test(driver_diff_rule SOURCES test_diff_rule.c LIBS driver formats)
