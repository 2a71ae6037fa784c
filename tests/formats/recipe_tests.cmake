unit_test(formats_recipe_json SOURCES test_recipe.c LIBS formats_recipe)
