package PD::Workers;

# The fake workers of a test file: one Python process that is ready to fork a
# worker in milliseconds. A worker does what its options say and writes all
# that it hears into a log, one event a line; the options and the events are
# described in t/lib/fake_worker.py.

use strict;
use warnings;

use IPC::Open2;
use Time::HiRes qw(time sleep);

sub new {
    my ($class, $root, $build) = @_;

    my $python = "$root/build/venv/bin/python";
    -x $python or die "no $python: run \"make venv\"\n";

    my $pid = open2(my $out, my $in, $python, "$root/t/lib/fake_worker.py",
                    "$root/proto/pd.proto", $build);

    return bless { pid => $pid, in => $in, out => $out, worker => {} }, $class;
}

# Options is the rest of a line: key=value ...
sub start {
    my ($self, $name, $options, $log) = @_;

    my $known = $self->{worker}{$name};
    $options //= $known->{options};
    $log //= $known->{log};

    # a worker that comes back has its old address
    $options .= " port=$known->{port}" if $known;

    my $in = $self->{in};
    print $in "start $name $log $options\n";
    $in->flush;

    my $out = $self->{out};
    my $line = <$out> // die "the fake workers' process has ended\n";
    $line =~ /^started (\d+) (\d+)$/ or die "fake worker $name: $line\n";

    $self->{worker}{$name} = { pid => $1, port => $2, options => $options,
                               log => $log, seen => $known->{seen} || 0 };
}

sub kill {
    my ($self, $name, $signal) = @_;

    my $worker = $self->{worker}{$name} or die "no worker $name\n";
    CORE::kill($signal, $worker->{pid});
}

# Lets the worker go through the gate that it waits at, or will wait at.
sub release {
    my ($self, $name, $timeout) = @_;

    my $before = () = $self->log($name) =~ /^release$/mg;
    $self->kill($name, 'USR1');

    my $deadline = time + $timeout;
    until ((() = $self->log($name) =~ /^release$/mg) > $before) {
        return 0 if time > $deadline;
        sleep 0.005;
    }

    return 1;
}

sub log {
    my ($self, $name) = @_;

    my $worker = $self->{worker}{$name} or die "no worker $name\n";
    open(my $file, '<', $worker->{log}) or return '';
    local $/;
    return <$file> // '';
}

# Waits for an event behind what was expected before.
sub expect {
    my ($self, $name, $pattern, $timeout) = @_;

    my $worker = $self->{worker}{$name} or die "no worker $name\n";
    my $deadline = time + $timeout;

    while (1) {
        my $log = $self->log($name);
        pos($log) = $worker->{seen};

        if ($log =~ /$pattern/mg) {
            $worker->{seen} = pos $log;
            return 1;
        }

        return 0 if time > $deadline;
        sleep 0.005;
    }
}

sub stop_all {
    my ($self) = @_;

    CORE::kill('KILL', $_->{pid}) for values %{ $self->{worker} };
    $self->{worker} = {};
}

sub DESTROY {
    my ($self) = @_;

    local ($?, $!);
    close $self->{in};
    waitpid($self->{pid}, 0);
}

1;
