/** Tunnels: round trip, throughput in both directions, and a hundred at once. */
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import type { Duplex } from 'node:stream'
import { compareTimes, type Timed, time, turnOf } from '../compare-times.ts'
import { interleave } from '../interleave.ts'
import type { Comparison, Measurement, Row, Run } from '../row.ts'
import type { GuestAccess } from '../vm/guest-access.ts'
import { BARE_PORT, compareGuests, withSandboxAndBareVm } from '../vm/sandbox-and-bare-vm.ts'

const TRIPS = 20
const MOVED_BYTES = 32 * 1024 * 1024
const CHUNK_BYTES = 256 * 1024
const AT_ONCE = 100
const PORTS = { echo: 7001, source: 7002, sink: 7003 }

export const tunnelTripRow: Row = {
  name: 'tunnel-trip',
  what: 'a byte through an open tunnel to an echo server in the guest and back, against the port of a bare VM',
  unit: 'ms',
  baseline: BARE_PORT,
  measure: (run) => withServers(run, (ours, baseline) => measureTunnelTrips(run, ours, baseline)),
  comparison: compareGuests(async (run, guest) => {
    await startTunnelServers(guest)
    // Not closed: its sandbox is deleted.
    const tunnel = await guest.tunnel(PORTS.echo)
    await tripMany(run, tunnel)
    return async () => turnOf(await tripMany(run, tunnel))
  }),
}

export const tunnelDownRow: Row = {
  name: 'tunnel-down',
  what: `${MOVED_BYTES / 1024 / 1024} MiB out of the guest through a tunnel, against the port of a bare VM`,
  unit: 'MB/s',
  baseline: BARE_PORT,
  measure: (run) => withServers(run, (ours, baseline) => measureTunnelRates(run, ours, baseline, pullThroughTunnel)),
  comparison: compareRates(pullThroughTunnel),
}

export const tunnelUpRow: Row = {
  name: 'tunnel-up',
  what: `${MOVED_BYTES / 1024 / 1024} MiB into the guest through a tunnel, against the port of a bare VM`,
  unit: 'MB/s',
  baseline: BARE_PORT,
  measure: (run) => withServers(run, (ours, baseline) => measureTunnelRates(run, ours, baseline, pushThroughTunnel)),
  comparison: compareRates(pushThroughTunnel),
}

export const tunnels100Row: Row = {
  name: 'tunnels-100',
  what: `${AT_ONCE} tunnels opened at once, 1 KiB through each and back, all closed; against a bare VM`,
  unit: 'ms',
  baseline: BARE_PORT,
  measure: (run) => withServers(run, (ours, baseline) => measureMany(run, ours, baseline)),
  comparison: compareGuests(async (run, guest) => {
    await startTunnelServers(guest)
    await burst(guest)
    return async () => turnOf(await time(run, () => burst(guest)))
  }),
}

function withServers(
  run: Run,
  measure: (ours: GuestAccess, baseline: GuestAccess) => Promise<Measurement>,
): Promise<Measurement> {
  return withSandboxAndBareVm(run, async (ours, baseline) => {
    for (const guest of [ours, baseline]) await startTunnelServers(guest)
    return measure(ours, baseline)
  })
}

export async function startTunnelServers(guest: GuestAccess): Promise<void> {
  const output = guest.connect(await guest.start({ cmd: 'perl', args: ['-MIO::Socket::INET', '-e', SERVERS] }))
  await output.next() // All three listen.
  await output.return()
}

export async function measureTunnelTrips(run: Run, ours: GuestAccess, baseline: GuestAccess): Promise<Measurement> {
  const [ourTunnel, baselineTunnel] = [await ours.tunnel(PORTS.echo), await baseline.tunnel(PORTS.echo)]
  for (const tunnel of [ourTunnel, baselineTunnel]) await tripMany(run, tunnel)
  try {
    return await compareTimes(
      run,
      () => tripMany(run, ourTunnel),
      () => tripMany(run, baselineTunnel),
    )
  } finally {
    for (const tunnel of [ourTunnel, baselineTunnel]) tunnel.destroy()
  }
}

async function tripMany(run: Run, tunnel: Duplex): Promise<Timed[]> {
  const timed = []
  for (let trip = 0; trip < TRIPS; trip++) timed.push(await time(run, () => echo(tunnel, Buffer.from('x'))))
  return timed
}

async function burst(guest: GuestAccess): Promise<void> {
  const openOne = async () => {
    const tunnel = await guest.tunnel(PORTS.echo)
    await echo(tunnel, randomBytes(1024))
    await close(tunnel)
  }
  await Promise.all(Array.from({ length: AT_ONCE }, openOne))
}

async function measureMany(run: Run, ours: GuestAccess, baseline: GuestAccess): Promise<Measurement> {
  for (const guest of [ours, baseline]) await burst(guest)
  return compareTimes(
    run,
    () => time(run, () => burst(ours)),
    () => time(run, () => burst(baseline)),
  )
}

export async function measureTunnelRates(
  run: Run,
  ours: GuestAccess,
  baseline: GuestAccess,
  move: Move,
): Promise<Measurement> {
  for (const guest of [ours, baseline]) await move(guest)
  const turns = await interleave(run, { ours: () => rateOf(ours, move), baseline: () => rateOf(baseline, move) })
  return { ...turns, ok: 1 } // A failed transfer ends the row: it has no rate.
}

function compareRates(move: Move): Comparison {
  return compareGuests(async (_run, guest) => {
    await startTunnelServers(guest)
    await move(guest)
    return async () => ({ samples: [await rateOf(guest, move)], failed: 0 })
  })
}

type Move = (guest: GuestAccess) => Promise<void>

async function rateOf(guest: GuestAccess, move: Move): Promise<number> {
  const startedAt = performance.now()
  await move(guest)
  return MOVED_BYTES / 1e6 / ((performance.now() - startedAt) / 1000)
}

export async function pullThroughTunnel(guest: GuestAccess): Promise<void> {
  const tunnel = await guest.tunnel(PORTS.source)
  let bytes = 0
  for await (const chunk of tunnel) bytes += (chunk as Buffer).length
  tunnel.end()
  if (bytes !== MOVED_BYTES) throw new Error(`received ${bytes} of ${MOVED_BYTES} bytes`)
}

export async function pushThroughTunnel(guest: GuestAccess): Promise<void> {
  const tunnel = await guest.tunnel(PORTS.sink)
  const chunk = Buffer.alloc(CHUNK_BYTES)
  for (let sent = 0; sent < MOVED_BYTES; sent += CHUNK_BYTES) {
    if (!tunnel.write(chunk)) await once(tunnel, 'drain')
  }
  tunnel.end()
  let received = ''
  for await (const text of tunnel) received += String(text)
  if (Number(received) !== MOVED_BYTES) throw new Error(`the guest received ${received} of ${MOVED_BYTES} bytes`)
}

async function echo(tunnel: Duplex, bytes: Buffer): Promise<void> {
  let received = Buffer.alloc(0)
  const complete = new Promise<void>((resolve, reject) => {
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
  await complete
  if (!received.equals(bytes)) throw new Error('the echo has other bytes')
}

async function close(tunnel: Duplex): Promise<void> {
  tunnel.resume().end()
  if (!tunnel.readableEnded) await once(tunnel, 'end')
}

/** Three servers with a process for each connection. Prints `ready` when all of them listen. */
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
