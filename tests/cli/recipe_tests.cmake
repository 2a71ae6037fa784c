# Artifacts of other programs, damaged payloads, and what is installed with the program.
python_test(cli_import_foreign SCRIPT test_import_foreign.py)
