unit_test(driver_plan_schedule SOURCES test_plan_schedule.c LIBS driver formats m)
