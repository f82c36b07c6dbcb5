# The worked example, conf/tenants.conf with conf/pd-keys.example, does what
# its comments say.

use Cwd qw(abs_path);
use File::Basename qw(dirname);

use Test::Nginx::Socket 'no_plan';

my $conf = abs_path(dirname(__FILE__)) . '/../conf';

sub text {
    open(my $file, '<', "$conf/$_[0]") or die "$conf/$_[0]: $!\n";
    local $/;
    return <$file>;
}

add_block_preprocessor(sub {
    my ($block) = @_;

    my $example = text('tenants.conf');

    # a machine's own paths and addresses
    $example =~ s{/var/lib/nginx/}{{{root}}/};
    $example =~ s{/var/log/nginx/}{{{root}}/logs/};
    $example =~ s{/etc/nginx/pd-keys}{{{root}}/pd-keys}g;
    $example =~ s{listen 8000;}
                 {listen 127.0.0.1:{{port}}; server_name localhost;};
    $example =~ s{127\.0\.0\.1:9000}{{{p0}}};
    $example =~ s{127\.0\.0\.1:9001}{{{d0}}};
    $example =~ s{queue 1024}{queue 1};

    # the harness has a server of the same name, which comes too late
    $block->set_value(http_config => $example);
    $block->set_value(config => '');
    $block->set_value(user_files => ">>> pd-keys\n" . text('pd-keys.example'));
    $block->set_value(worker => "p0 role=prefill model=large\n"
                                . "d0 role=decode model=large max_seqs=1 "
                                . "gate=finish\n");
    $block->set_value(request => <<'END');
POST /v1/completions
{"model":"large","prompt":"hello","stream":true}
END
});

run_tests();

__DATA__

=== TEST 1: limits come from the line of the model, the tenant, the server
--- more_headers
Authorization: Bearer abc
--- steps
client request
client expect t1
worker d0 release
client finish
--- response_headers
x-ratelimit-limit-tokens: 200000
x-ratelimit-limit-requests:



=== TEST 2: interactive tenants come first, and batches may wait
--- more_headers
Authorization: Bearer abc
--- more_headers_client3
Authorization: Bearer test
--- steps
client request
client expect t1
client2 request
sleep 0.1
client3 request
sleep 0.1
worker d0 release
client3 expect t1
client2 lacks t0
worker d0 release
client2 expect t1
worker d0 release
client2 finish



=== TEST 3: a stranger stays outside
--- error_code: 401
