# Sources that several verbs share, or that a verb is split into.
list(APPEND DRIVER_SOURCES verb_support.c verb_lookup_ids.c verb_inspect_recipe.c
  verb_diff_source.c verb_diff_compare.c verb_doctor_blas.c verb_doctor_folder.c recipe_files.c
  recipe_record.c recipe_compare.c)
list(APPEND DRIVER_SOURCES enclosing.c enclosing_model.c enclosing_stage.c enclosing_report.c
  enclosing_check.c enclosing_finish.c enclosing_verify.c verb_run.c)
list(APPEND DRIVER_SOURCES hf_config.c hf_families.c hf_snapshot.c hf_spec.c)
list(APPEND DRIVER_SOURCES report_html.c report_more.c report_svg.c report_text.c)
