#!/bin/bash
#
# Builds ngx_http_pd_module.so into $BUILD, against Debian's nginx-dev or, where
# NGINX_SRC names a source tree, against that tree; then the nginx of the tree
# is built too, as $BUILD/nginx/objs/nginx: a module only loads into the exact version
# (and, with a sanitizer, the exact build) that it was made for.
#
# BUILD=DIR [SANITIZER=address] [NGINX_SRC=DIR] [CC=cc] ngx_pd_module/build.sh

set -euo pipefail

top=$(cd "$(dirname "$0")/.." && pwd)
build=$(cd "$top" && mkdir -p "$BUILD" && cd "$BUILD" && pwd)
objects=$build/nginx/objs
stock=/usr/share/nginx/src

cc_options='-g -O2'
ld_options=

case ${SANITIZER:-} in
    '') ;;
    address)
        # nginx's own pools are told to allocate piece by piece, or an overrun
        # inside a pool would never be seen.
        cc_options='-g -O1 -fno-omit-frame-pointer -DNGX_DEBUG_PALLOC=1'
        cc_options+=' -fsanitize=address,undefined'
        ld_options='-fsanitize=address,undefined'
        ;;
    *)
        echo "ngx_pd_module: nginx has no threads that SANITIZER=$SANITIZER" \
             'could watch; use SANITIZER=address' >&2
        exit 1
        ;;
esac

if [ -n "${NGINX_SRC:-}" ]; then
    source=$(cd "$top" && cd "$NGINX_SRC" && pwd)
    options=(--prefix="$build/nginx-prefix" --with-compat --with-debug
             --with-threads --with-pcre-jit --with-http_ssl_module
             --with-http_v2_module --with-http_realip_module
             --with-http_auth_request_module --with-http_stub_status_module
             --with-http_sub_module)
    targets='binary modules'

    if [ ! -f "$source/src/core/nginx.c" ]; then
        echo "ngx_pd_module: $source is not an nginx source tree" >&2
        exit 1
    fi

elif [ -n "${SANITIZER:-}" ]; then
    echo 'ngx_pd_module: a sanitized module needs a sanitized nginx:' \
         'run ./configure --with-nginx-src=DIR' >&2
    exit 1

else
    source=$stock
    targets=modules

    if [ ! -f "$stock/conf_flags" ]; then
        echo 'ngx_pd_module: no nginx headers: apt-get install nginx-dev,' \
             'or run ./configure --with-nginx-src=DIR' >&2
        exit 1
    fi

    . "$stock/conf_flags"
    options=("${NGX_CONF_FLAGS[@]}")

    # As it is installed: optimized as one whole, since nearly every call in it
    # is from one small file to another. (clang would need a linker that it
    # does not bring.)

    case $(${CC:-cc} --version) in
        *'Free Software Foundation'*)
            cc_options='-g -O3 -flto=1 -flto-partition=one'
            ld_options=$cc_options
            ;;
    esac
fi

cd "$source"

# Two rules of one make may come here at once: the second waits, and finds all
# done. nginx's configure runs only when what it would say has changed.

mkdir -p "$build/nginx"
exec 9> "$build/nginx/.lock"
flock 9

stamp=$(printf '%s\n' "$source" "${CC:-cc}" "$cc_options" "$ld_options" \
                "${options[@]}" \
        | cat - "$top/ngx_pd_module/config" src/core/nginx.h | sha256sum)

if [ "$stamp" != "$(cat "$objects/.configured" 2>/dev/null)" ]; then
    rm -rf "$objects"
    mkdir -p "$objects"

    if ! PD_BUILD=$build ./configure "${options[@]}" \
            --with-cc="${CC:-cc}" \
            --with-cc-opt="$cc_options" --with-ld-opt="$ld_options" \
            --builddir="$objects" \
            --add-dynamic-module="$top/ngx_pd_module" \
            > "$build/nginx/configure.log" 2>&1
    then
        tail -n 20 "$build/nginx/configure.log" >&2
        exit 1
    fi

    echo "$stamp" > "$objects/.configured"
fi

for target in $targets; do
    make --no-print-directory -s -f "$objects/Makefile" "$target"
done

# In one step: an nginx that runs with the old file keeps it.
cmp -s "$objects/ngx_http_pd_module.so" "$build/ngx_http_pd_module.so" || {
    cp "$objects/ngx_http_pd_module.so" "$build/ngx_http_pd_module.so.new"
    mv "$build/ngx_http_pd_module.so.new" "$build/ngx_http_pd_module.so"
}
