# The spec reader, beside spec.c, spec_block.c, spec_graph.c and ids.c.
set(SPEC_SOURCES spec_json.c spec_attr.c json_value.c)
