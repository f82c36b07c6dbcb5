# Overload: everybody is answered, or told when to come again.

use Test::Nginx::Socket 'no_plan';

add_block_preprocessor(sub {
    my ($block) = @_;

    my $queue = $block->queue // '';
    $block->set_value(http_config => <<"END");
pd_zone pd:4m;
pd_cluster chat {
    worker {{p0}};
    worker {{d0}};
    worker {{d1}};
    $queue
}
END
    defined $block->config
        or $block->set_value(config => 'location /v1/ { pd_pass chat; }');
    $block->set_value(main_config => 'worker_rlimit_nofile 8192;');
    $block->set_value(worker_connections => 4096);
    $block->set_value(workers => 2);
    $block->set_value(timeout => 120);
    $block->set_value(worker => <<'END');
p0 role=prefill max_seqs=16
d0 role=decode max_seqs=16
d1 role=decode max_seqs=16
END
});

run_tests();

__DATA__

=== TEST 1: 2,000 requests at once, of which few have room
--- queue: queue 200;
--- steps
nginx expect attached
nginx burst 2000 --stream
nginx expect /burst: (?=.*"200": )(?=.*"503": )/
nginx burst 8
nginx expect burst: {"200": 8}



=== TEST 2: and with room for all, each is served
--- queue: queue 4096 timeout=1h;
--- steps
nginx expect attached
nginx burst 300
nginx expect burst: {"200": 300}



=== TEST 3: of one caller, no more than his limit
--- queue: queue 4096 timeout=1h;
--- config
pd_tenant all;
pd_limit requests=400;
location /v1/ { pd_pass chat; }
--- steps
nginx expect attached
nginx burst 2000
nginx expect /burst: (?=.*"200": [4-9]\d\d)(?=.*"429": 1\d\d\d)/
