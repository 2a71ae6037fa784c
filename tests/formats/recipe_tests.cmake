unit_test(formats_recipe_json SOURCES test_recipe.c LIBS formats_recipe)
unit_test(formats_packed SOURCES test_packed.c LIBS formats_recipe PkgConfig::ZSTD)
unit_test(formats_foreign SOURCES test_foreign.c
  LIBS formats_recipe PkgConfig::ZSTD PkgConfig::CJSON)
