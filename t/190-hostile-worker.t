# Workers that lie, babble or speak something else: the stream is closed with a
# reason in the log, and others go on.

use Test::Nginx::Socket 'no_plan';

add_block_preprocessor(sub {
    my ($block) = @_;

    $block->set_value(http_config => <<'END');
pd_zone pd:1m;
pd_cluster chat { worker {{bad}}; worker {{good}} backup; }
END
    $block->set_value(config => 'location /v1/ { pd_pass chat; }');
    $block->set_value(request => <<'END');
POST /v1/completions
{"model":"m","prompt":"hello","stream":true}
END
    my ($options, $log) = ($block->bad, $block->reason);
    chomp($options, $log);
    $block->set_value(worker => "bad $options\ngood\n");
    defined $block->steps or $block->set_value(steps => <<"END");
nginx expect $log
worker good expect attach
client request
client expect t2
worker good expect submit
END
});

run_tests();

__DATA__

=== TEST 1: bytes that are no message
--- bad: send=garbage
--- reason: it sent a message that cannot be read


=== TEST 2: a message longer than gRPC allows
--- bad: send=huge
--- reason: a message is longer than 4 MiB


=== TEST 3: a small message that would be large in memory
--- bad: send=many
--- reason: it sent a message that cannot be read


=== TEST 4: messages nested a hundred thousand deep
--- bad: send=nested
--- reason: it sent a message that cannot be read


=== TEST 5: a second hello
--- bad: send=hello
--- reason: it said hello twice


=== TEST 6: no hello first
--- bad: send=early
--- reason: its first message is no hello


=== TEST 7: a model name without end
--- bad: model=xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
--- reason: its hello names no model, or a too long one


=== TEST 8: an empty fingerprint
--- bad: fingerprint=
--- reason: its hello has no full fingerprint


=== TEST 9: a pool of no blocks
--- bad: blocks=0
--- reason: its hello has no sensible KV pool


=== TEST 10: HTTP/1
--- bad: raw=http1
--- reason: cannot attach to worker


=== TEST 11: noise
--- bad: raw=noise
--- reason: HTTP/2: the session has ended


=== TEST 12: a connection that closes
--- bad: raw=close
--- reason: cannot attach to worker


=== TEST 13: impossible settings
--- bad: raw=settings
--- reason: cannot attach to worker


=== TEST 14: a frame that is none
--- bad: raw=frame
--- reason: cannot attach to worker


=== TEST 15: a frame larger than was agreed
--- bad: raw=oversize
--- reason: cannot attach to worker


=== TEST 16: a compressed message
--- bad: raw=compressed
--- reason: a message is compressed


=== TEST 17: a message of 4 GB
--- bad: raw=length
--- reason: a message is longer than 4 MiB


=== TEST 18: another status
--- bad: raw=status
--- reason: the peer answers HTTP status 404: is it a pd-worker?


=== TEST 19: another content type
--- bad: raw=type
--- reason: the peer does not speak gRPC: is it a pd-worker?


=== TEST 20: a method that is not there
--- bad: raw=refused
--- reason: the worker has ended the stream: grpc-status 12 "no%20such%20method%0a%ff"


=== TEST 21: a reset stream
--- bad: raw=reset
--- reason: the stream was reset: REFUSED_STREAM



=== TEST 21b: frames that come a byte at a time
--- bad: raw=pieces
--- reason: a message is compressed


=== TEST 21c: a frame with padding
--- bad: raw=padded
--- reason: a message is compressed


=== TEST 21d: data before its response
--- bad: raw=early
--- reason: HTTP/2: the session has ended


=== TEST 21e: a window that grows by nothing
--- bad: raw=nothing
--- reason: HTTP/2: a window update by 0


=== TEST 21f: a window that grows beyond all
--- bad: raw=window
--- reason: HTTP/2: a window update by 2147483647



=== TEST 22: things of later protocols, and about requests of nobody, are ignored
--- bad: send=unknown,empty,stranger
--- reason: none
--- steps
nginx expect attached
nginx expect attached
client request
client expect t2
worker bad expect submit
worker bad expect heartbeat
--- no_error_log
lost worker
