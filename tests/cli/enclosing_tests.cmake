# Enclosing models, end to end.  python_test is that of compile_tests.cmake; the real and golden cases skip
# themselves where ../shared is absent.
python_test(cli_enclosing_example SCRIPT test_enclosing_example.py)
python_test(cli_enclosing_icu SCRIPT test_enclosing_icu.py)
python_test(cli_enclosing_cld3 SCRIPT test_enclosing_cld3.py)
python_test(cli_enclosing_guesslang SCRIPT test_enclosing_guesslang.py)
python_test(cli_enclosing_magika SCRIPT test_enclosing_magika.py)
python_test(cli_enclosing_golden SCRIPT test_enclosing_golden.py)
python_test(cli_enclosing_stories SCRIPT test_enclosing_stories.py TIMEOUT 900)
python_test(cli_enclosing_refusals SCRIPT test_enclosing_refusals.py TIMEOUT 600 PROCESSORS 2)
