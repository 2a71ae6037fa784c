/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/libraries.h"

#include <cjson/cJSON.h>
#include <zstd.h>

const char *format_zstd_version(void)
{
    return ZSTD_versionString();
}

const char *format_cjson_version(void)
{
    return cJSON_Version();
}
