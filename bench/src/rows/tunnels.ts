/** Tunnels: round trip, throughput in both directions, and a hundred at once. */
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import type { Duplex } from 'node:stream'
import { compareTimes, time } from '../compare-times.ts'
import { interleave } from '../interleave.ts'
import type { Measurement, Row, Run } from '../row.ts'
import type { Door } from '../vm/door.ts'
import { BARE_PORT, withTwoDoors } from '../vm/two-doors.ts'

const TRIPS = 20
const MOVED_BYTES = 32 * 1024 * 1024
const CHUNK_BYTES = 256 * 1024
const AT_ONCE = 100
const PORTS = { echo: 7001, source: 7002, sink: 7003 }

export const tunnelTripRow: Row = {
  name: 'tunnel-trip',
  what: 'a byte through an open tunnel to an echo server in the guest and back, against the port of a bare machine',
  unit: 'ms',
  baseline: BARE_PORT,
  measure: (run) => withServers(run, (ours, baseline) => measureTrips(run, ours, baseline)),
}

export const tunnelDownRow: Row = {
  name: 'tunnel-down',
  what: `${MOVED_BYTES / 1024 / 1024} MiB out of the guest through a tunnel, against the port of a bare machine`,
  unit: 'MB/s',
  baseline: BARE_PORT,
  measure: (run) => withServers(run, (ours, baseline) => measureRates(run, ours, baseline, pull)),
}

export const tunnelUpRow: Row = {
  name: 'tunnel-up',
  what: `${MOVED_BYTES / 1024 / 1024} MiB into the guest through a tunnel, against the port of a bare machine`,
  unit: 'MB/s',
  baseline: BARE_PORT,
  measure: (run) => withServers(run, (ours, baseline) => measureRates(run, ours, baseline, push)),
}

export const tunnels100Row: Row = {
  name: 'tunnels-100',
  what: `${AT_ONCE} tunnels opened at once, 1 KiB through each and back, all closed; against a bare machine`,
  unit: 'ms',
  baseline: BARE_PORT,
  measure: (run) => withServers(run, (ours, baseline) => measureMany(run, ours, baseline)),
}

function withServers(run: Run, measure: (ours: Door, baseline: Door) => Promise<Measurement>): Promise<Measurement> {
  return withTwoDoors(run, async (ours, baseline) => {
    for (const door of [ours, baseline]) {
      const output = door.connect(await door.start({ cmd: 'perl', args: ['-MIO::Socket::INET', '-e', SERVERS] }))
      await output.next() // All listen.
      await output.return()
    }
    return measure(ours, baseline)
  })
}

async function measureTrips(run: Run, ours: Door, baseline: Door): Promise<Measurement> {
  const [oursOpen, baselineOpen] = [await ours.tunnel(PORTS.echo), await baseline.tunnel(PORTS.echo)]
  const trips = async (tunnel: Duplex) => {
    const timed = []
    for (let trip = 0; trip < TRIPS; trip++) timed.push(await time(run, () => echo(tunnel, Buffer.from('x'))))
    return timed
  }
  for (const tunnel of [oursOpen, baselineOpen]) await trips(tunnel)
  try {
    return await compareTimes(
      run,
      () => trips(oursOpen),
      () => trips(baselineOpen),
    )
  } finally {
    for (const tunnel of [oursOpen, baselineOpen]) tunnel.destroy()
  }
}

async function measureMany(run: Run, ours: Door, baseline: Door): Promise<Measurement> {
  const burst = (door: Door) =>
    Promise.all(
      Array.from({ length: AT_ONCE }, async () => {
        const tunnel = await door.tunnel(PORTS.echo)
        await echo(tunnel, randomBytes(1024))
        await close(tunnel)
      }),
    )
  for (const door of [ours, baseline]) await burst(door)
  return compareTimes(
    run,
    () => time(run, () => burst(ours)),
    () => time(run, () => burst(baseline)),
  )
}

async function measureRates(
  run: Run,
  ours: Door,
  baseline: Door,
  move: (door: Door) => Promise<void>,
): Promise<Measurement> {
  const rateOf = async (door: Door) => {
    const startedAt = performance.now()
    await move(door)
    return MOVED_BYTES / 1e6 / ((performance.now() - startedAt) / 1000)
  }
  for (const door of [ours, baseline]) await rateOf(door)
  const turns = await interleave(run, { ours: () => rateOf(ours), baseline: () => rateOf(baseline) })
  return { ...turns, ok: 1 } // One that fails ends the row: a rate of nothing is none.
}

async function pull(door: Door): Promise<void> {
  const tunnel = await door.tunnel(PORTS.source)
  let bytes = 0
  for await (const chunk of tunnel) bytes += (chunk as Buffer).length
  tunnel.end()
  if (bytes !== MOVED_BYTES) throw new Error(`${bytes} of ${MOVED_BYTES} bytes came out`)
}

async function push(door: Door): Promise<void> {
  const tunnel = await door.tunnel(PORTS.sink)
  const chunk = Buffer.alloc(CHUNK_BYTES)
  for (let sent = 0; sent < MOVED_BYTES; sent += CHUNK_BYTES) {
    if (!tunnel.write(chunk)) await once(tunnel, 'drain')
  }
  tunnel.end()
  let told = ''
  for await (const text of tunnel) told += String(text)
  if (Number(told) !== MOVED_BYTES) throw new Error(`${told} of ${MOVED_BYTES} bytes came in`)
}

async function echo(tunnel: Duplex, bytes: Buffer): Promise<void> {
  let received = Buffer.alloc(0)
  const whole = new Promise<void>((resolve, reject) => {
    const ended = () => reject(new Error('the tunnel ended'))
    const take = (chunk: Buffer) => {
      received = Buffer.concat([received, chunk])
      if (received.length < bytes.length) return
      tunnel.off('data', take).off('close', ended)
      resolve()
    }
    tunnel.on('data', take).on('close', ended).resume()
  })
  tunnel.write(bytes)
  await whole
  if (!received.equals(bytes)) throw new Error('other bytes came back')
}

async function close(tunnel: Duplex): Promise<void> {
  tunnel.resume().end()
  if (!tunnel.readableEnded) await once(tunnel, 'end')
}

/** One process for each connection. It says so when all three listen. */
const SERVERS = `$| = 1; $SIG{CHLD} = 'IGNORE';
sub serve {
  my ($port, $work) = @_;
  my $server = IO::Socket::INET->new(Listen => 128, ReuseAddr => 1, LocalAddr => "127.0.0.1:$port") or die $!;
  return if fork;
  while (1) { my $peer = $server->accept or next; next if fork; $work->($peer); exit }
}
serve(${PORTS.echo}, sub { my $peer = shift; my $b; syswrite($peer, $b) while sysread($peer, $b, 65536) });
serve(${PORTS.source}, sub { my $peer = shift; my $b = "x" x 65536; syswrite($peer, $b) for 1..${MOVED_BYTES / 65536} });
serve(${PORTS.sink}, sub { my $peer = shift; my ($b, $n, $all); $all += $n while $n = sysread($peer, $b, 65536); syswrite($peer, $all) });
print "ready\\n"; sleep`
