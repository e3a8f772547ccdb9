# Crashes at random moments of everything that happens to an index: rows as the
# table has them, recall, nothing damaged, nothing left behind.  NavisCrash.pm
# says what is done and what is asked; NAVIS_CRASH_ROUNDS and NAVIS_CRASH_SEED
# run more (test/soak.sh server).
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use NavisCrash;
use Test::More;

# A server does so many rounds, then a new one.
use constant ROUNDS_A_SERVER => 20;

my $rounds = $ENV{NAVIS_CRASH_ROUNDS} // 4;
# Four rounds of this seed do most of what there is.
my $seed = $ENV{NAVIS_CRASH_SEED} // 8904;

while ($rounds > 0)
{
	my $n = $rounds < ROUNDS_A_SERVER ? $rounds : ROUNDS_A_SERVER;

	last unless crash_campaign($seed++, $n);
	$rounds -= $n;
}
done_testing();
