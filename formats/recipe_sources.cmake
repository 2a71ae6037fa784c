# Sources of formats_recipe beside recipe.c and packed.c: recipe.json, packed payload, foreign artifacts.
set(RECIPE_SOURCES recipe_check.c recipe_decode.c)
