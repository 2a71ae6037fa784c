# Sources of formats_recipe beside recipe.c and packed.c: recipe.json, packed payload, foreign artifacts.
set(RECIPE_SOURCES recipe_check.c recipe_decode.c packed_planes.c packed_code.c packed_write.c
  packed_share.c packed_read.c packed_file.c foreign_pack.c foreign_export.c foreign_import.c)
