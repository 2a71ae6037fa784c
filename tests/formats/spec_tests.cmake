# Tests of the spec reader.
foreach(topic spec spec_block spec_graph spec_golden spec_ids)
  unit_test(formats_${topic} SOURCES test_${topic}.c LIBS formats PkgConfig::CJSON)
endforeach()
