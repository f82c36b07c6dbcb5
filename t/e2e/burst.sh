# A burst of requests on a small cluster of real workers: each gets an answer, or a 503 with Retry-After;
# then the cluster serves as before. PD_BURST is how many (2000).
set -eu

port=${PD_URL#http://127.0.0.1:}
port=${port%%/*}

python3 t/lib/burst.py "$port" "${PD_BURST:-2000}" --stream --model smollm2 --seconds 300
python3 t/lib/burst.py "$port" 1 --model smollm2 | grep -q '{"200": 1}'

# neither worker nor nginx has said anything to be alarmed at, and no request has failed
! grep -q '" 500 \| status 500' "$PD_DIR"/error.log
