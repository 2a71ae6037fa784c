/* SPDX-License-Identifier: Apache-2.0 */
/* Strict JSON in, fixed bytes out. */
#include "formats/recipe.h"
#include "tests/formats/fixture.h"

#include <cjson/cJSON.h>

#include <math.h>

static void refused(const char *text, const char *part)
{
    struct cJSON *json = NULL;
    struct err err = {0};
    enum status st = format_json_parse("doc", text, strlen(text), &json, &err);
    CU_ASSERT_EQUAL(st, ST_FORMAT);
    CU_ASSERT_PTR_NULL(json);
    CU_ASSERT(fixture_says(&err, part));
    CU_ASSERT(fixture_says(&err, "doc: "));
    format_json_free(&json);
}

static void accepted(const char *text)
{
    struct cJSON *json = NULL;
    struct err err = {0};
    enum status st = format_json_parse("doc", text, strlen(text), &json, &err);
    if (st != ST_OK)
        printf("\n    %s: %s\n", text, err.message);
    CU_ASSERT_EQUAL(st, ST_OK);
    CU_ASSERT_PTR_NOT_NULL(json);
    format_json_free(&json);
    CU_ASSERT_PTR_NULL(json);
}

static void test_grammar(void)
{
    accepted(" {\"a\" : [1, -2.5e-3, true, false, null, \"x\\n\\u00e9\\ud83d\\ude00\"]}\r\n\t ");
    accepted("0");
    accepted("\"\xc3\xa9\xf0\x9f\x98\x80\"");
    accepted("{}");
    accepted("[[],{}]");
    refused("", "found the end");
    refused("{\"a\":1", "found the end");
    refused("{\"a\":1}x", "nothing behind the document, found 'x'");
    refused("{\"a\":1,}", "a key in quotes");
    refused("[1,]", "a JSON value");
    refused("{\"a\" 1}", "':'");
    refused("{a:1}", "a key in quotes");
    refused("[01]", "',' or ']', found '1'");
    refused("[1.]", "a digit after the decimal point");
    refused("[.5]", "a JSON value");
    refused("[+1]", "a JSON value");
    refused("[-]", "a digit");
    refused("[1e]", "a digit of the exponent");
    refused("[NaN]", "a JSON value");
    refused("[tru]", "a JSON value");
    refused("['a']", "a JSON value");
    refused("{} // comment", "nothing behind");
    refused("\xef\xbb\xbf{}", "found byte 0xef");
    refused("\v{}", "found byte 0x0b");
    refused("[1\n,\n 2 3]", "line 3 column 4");
    refused("[12345678901234567890123456789012345678901234567890123456789012345]", "62 characters");
}

static void test_strings(void)
{
    refused("\"a\\u0000\"", "NUL");
    refused("\"a\tb\"", "raw control character");
    refused("\"a\\x41\"", "an escape");
    refused("\"\\u12g4\"", "hexadecimal");
    refused("\"\\ud800\"", "low surrogate");
    refused("\"\\ud800\\u0041\"", "low surrogate");
    refused("\"\\udc00\"", "lone low surrogate");
    refused("\"\xff\"", "UTF-8");
    refused("\"\xc0\x80\"", "UTF-8");
    refused("\"\xed\xa0\x80\"", "UTF-8");
    refused("\"\xe2\x82\"", "UTF-8 at byte offset 1, found byte 0xe2");
    refused("\"abc", "closing quote");
    struct cJSON *json = NULL;
    struct err err = {0};
    CU_ASSERT_EQUAL(format_json_parse("doc", "\"\0\"", 3, &json, &err), ST_FORMAT);
    CU_ASSERT_EQUAL(format_json_parse("doc", "{}\0", 3, &json, &err), ST_FORMAT);
}

static void test_duplicates(void)
{
    refused("{\"a\":1,\"b\":2,\"a\":3}", "duplicate key \"a\" at the top level");
    refused("{\"x\":[0,{\"y\":{\"b\":1,\"b\":1}}]}", "duplicate key \"b\" in x[1].y");
    refused("{\"a\":1,\"\\u0061\":2}", "duplicate key \"a\"");
    accepted("{\"a\":1,\"A\":2}");
    accepted("[{\"a\":1},{\"a\":1}]");
}

static void test_depth(void)
{
    char text[2100];
    memset(text, '[', 1000);
    memset(text + 1000, ']', 1000);
    text[2000] = '\0';
    accepted(text);
    memset(text, '[', 1001);
    memset(text + 1001, ']', 1001);
    text[2002] = '\0';
    refused(text, "1000 nested levels");
}

static void test_read(void)
{
    struct cJSON *json = NULL;
    struct err err = {0};
    fixture_text("doc.json", "{\"a\": 2147483648}\n");
    CU_ASSERT_EQUAL(format_json_read("doc.json", 1000, &json, &err), ST_OK);
    CU_ASSERT_EQUAL(cJSON_GetObjectItemCaseSensitive(json, "a")->valuedouble, 2147483648.0);
    format_json_free(&json);
    CU_ASSERT_EQUAL(format_json_read("doc.json", 5, &json, &err), ST_FORMAT);
    CU_ASSERT_PTR_NULL(json);
    unlink("doc.json");
    err = (struct err){0};
    CU_ASSERT_EQUAL(format_json_read("doc.json", 5, &json, &err), ST_FORMAT);
}

static void write_all(struct format_writer *w)
{
    format_write_object(w, NULL);
    format_write_string(w, "name", "q\"\\\n\x01\xc3\xa9");
    format_write_u64(w, "exact", (uint64_t)1 << 53);
    format_write_u64(w, "beyond", ((uint64_t)1 << 53) + 1);
    format_write_i64(w, "negative", -5);
    format_write_i64(w, "least", INT64_MIN);
    format_write_array(w, "list");
    format_write_double(w, NULL, 0.1);
    format_write_double(w, NULL, -0.0);
    format_write_double(w, NULL, NAN);
    format_write_double(w, NULL, -INFINITY);
    format_write_end_array(w);
    format_write_array(w, "empty");
    format_write_end_array(w);
    format_write_object(w, "inner");
    format_write_end_object(w);
    format_write_bool(w, "yes", true);
    format_write_null(w, "null");
    format_write_raw(w, "raw", "[1,2]");
    format_write_end_object(w);
    format_write_finish(w);
}

static void test_writer(void)
{
    struct format_writer compact = {0};
    struct format_writer pretty = {.pretty = true};
    static const char expected[] =
        "{\"name\":\"q\\\"\\\\\\n\\u0001\xc3\xa9\",\"exact\":9007199254740992,"
        "\"beyond\":\"9007199254740993\",\"negative\":-5,\"least\":\"-9223372036854775808\","
        "\"list\":[0.1,-0,\"NaN\",\"-Infinity\"],\"empty\":[],\"inner\":{},\"yes\":true,"
        "\"null\":null,\"raw\":[1,2]}\n";
    write_all(&compact);
    write_all(&pretty);
    CU_ASSERT(!compact.out.failed && !pretty.out.failed);
    CU_ASSERT_EQUAL(compact.out.size, strlen(expected));
    if (compact.out.size != strlen(expected) ||
        memcmp(compact.out.data, expected, compact.out.size) != 0) {
        printf("\n    %.*s", (int)compact.out.size, (const char *)compact.out.data);
        CU_FAIL("compact text");
    }
    bytes_put_u8(&pretty.out, 0);
    CU_ASSERT_PTR_NOT_NULL(strstr((const char *)pretty.out.data, "{\n  \"name\": "));
    CU_ASSERT_PTR_NOT_NULL(strstr((const char *)pretty.out.data, "\"list\": [\n    0.1,\n"));
    CU_ASSERT_PTR_NOT_NULL(strstr((const char *)pretty.out.data, "\"empty\": [],\n"));
    struct cJSON *json = NULL;
    struct err err = {0};
    CU_ASSERT_EQUAL(format_json_parse("doc", pretty.out.data, pretty.out.size - 1, &json, &err),
                    ST_OK);
    CU_ASSERT_STRING_EQUAL(cJSON_GetObjectItemCaseSensitive(json, "name")->valuestring,
                           "q\"\\\n\x01\xc3\xa9");
    format_json_free(&json);
    bytes_free(&compact.out);
    bytes_free(&pretty.out);
}

int main(void)
{
    static const struct fixture_case cases[] = {
        {"grammar", test_grammar}, {"strings", test_strings}, {"duplicates", test_duplicates},
        {"nesting", test_depth},   {"files", test_read},      {"writer", test_writer},
    };
    return fixture_run("json", cases, sizeof cases / sizeof cases[0]);
}
