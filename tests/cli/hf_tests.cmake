# import-hf on snapshots that the tests make, and the page of report.
python_test(cli_import_hf SCRIPT test_import_hf.py)
python_test(cli_report SCRIPT test_report.py)
