#!/bin/sh
# Clients that speak HTTP/2 to the running cluster (t/cluster): bodies in frames, streams that are left.
set -u
failed=0
passed=0

check() { # NAME EXPECTED SEEN
    if [ "$2" = "$3" ]; then
        passed=$((passed + 1))
        echo "ok - $1"
    else
        failed=$((failed + 1))
        echo "not ok - $1: expected $2, got $3"
    fi
}

ask() { # PATH [curl options]
    path=$1
    shift
    curl -s --http2-prior-knowledge --unix-socket "$PD_DIR/http2.socket" "http://localhost/v1$path" "$@"
}

question='{"model": "smollm2", "temperature": 0, "max_tokens": 24, "messages": [{"role": "user", "content": "What is the capital of France?"}]}'
streamed=$(echo "$question" | jq -c '.stream = true')
endless=$(echo "$streamed" | jq -c '.max_tokens = 4000 | .ignore_eos = true')

check "it is HTTP/2" 2 "$(ask /models -o /dev/null -w '%{http_version}')"
whole=$(ask /chat/completions -d "$question" | jq -r '.choices[0].message.content')
check "a stream says the same as HTTP/1.1" "$(curl -s "$PD_URL/chat/completions" -d "$question" | jq -r '.choices[0].message.content')" \
    "$(ask /chat/completions -d "$streamed" | sed -n 's/^data: \({.*\)$/\1/p' | jq -rj '.choices[0].delta.content // ""')"
check "and so does a whole answer" "$whole" "$(ask /chat/completions -d "$question" | jq -r '.choices[0].message.content')"

jq -nc '{model: "smollm2", prompt: ("word " * 1000000), max_tokens: 1}' >"$PD_DIR/large.json"
check "a body of 5 MB is read" 400 "$(ask /completions -d @"$PD_DIR/large.json" -o /dev/null -w '%{http_code}')"
check "a wrong field is named" nonsense "$(ask /completions -d '{"nonsense": 1}' | jq -r '.error.param')"

ask /chat/completions -N -m 2 -d "$endless" >"$PD_DIR/left.txt"
check "a stream that is left had begun" true "$(grep -q '"content":' "$PD_DIR/left.txt" && echo true)"
i=0
until grep -q 'client prematurely closed' "$PD_DIR/error.log" || [ $i = 100 ]; do
    i=$((i + 1))
    sleep 0.1
done
check "and its leaving is noticed" true "$(grep -q 'client prematurely closed' "$PD_DIR/error.log" && echo true)"
check "the next request is served" "$whole" "$(ask /chat/completions -d "$question" | jq -r '.choices[0].message.content')"

echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
