# Runs in a guest and never stops: `sender.pl GOOD EVIL WEB` sends numbered datagrams to port 7777 of the first two
# addresses, a question for a numbered name of evil.example, and requests for evil.example over a connection to WEB that
# it keeps open, or opens again. It ends for no error: a cable that is cut is one.
use strict;
use IO::Handle;
use Socket;

use constant { PAUSE_S => 0.01, PATIENCE => 25 };

$SIG{PIPE} = 'IGNORE';
my ($good, $evil, $web) = @ARGV;
my ($connection, $opened);
socket my $datagrams, PF_INET, SOCK_DGRAM, 0 or die $!;
$datagrams->blocking(0);

for (my $number = 1;; $number++) {
    tell_of("good-$number", 7777, $good);
    tell_of("evil-$number", 7777, $evil);
    my @labels = ("q-$number", 'evil', 'example');
    tell_of(pack('n6', $number, 256, 1, 0, 0, 0) . pack('(C/a*)3 C n2', @labels, 0, 1, 1), 53, '169.254.1.1');
    request($number);
    1 while recv $datagrams, my $answer, 65536, 0;
    select undef, undef, undef, PAUSE_S;
}

sub tell_of {
    my ($bytes, $port, $ip) = @_;
    send $datagrams, $bytes, 0, sockaddr_in($port, inet_aton($ip));
}

sub request {
    my ($number) = @_;
    if (!$connection) {
        socket $connection, PF_INET, SOCK_STREAM, 0;
        $connection->blocking(0);
        connect $connection, sockaddr_in(80, inet_aton($web));
        $opened = $number;
    }
    my $sent = syswrite $connection, "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n";
    my $got = sysread $connection, my $answer, 65536;
    # The other side closed, or nothing has come of it for a while.
    if ((defined $got && $got == 0) || (!defined $sent && $number - $opened > PATIENCE)) { undef $connection }
}
