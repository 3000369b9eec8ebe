/** What a guest is told before anyone is let in: time, randomness, who it is. Each is confirmed by the guest. */
import { randomBytes } from 'node:crypto'
import type { ClientHttp2Session } from 'node:http2'
import { GuestClockResponse, GuestGrowResponse, type GuestIdentityBody, GuestWakeResponse } from '@warren/protocol'
import { callGuest } from '../guest/call-guest.ts'
import { diskNode } from './args.ts'
import type { Vmm } from './vmm.ts'

const CLOCK_TRIP_MAX_MS = 50
const CLOCK_TRIES = 5

export class IdentityNotConfirmed extends Error {
  override name = 'IdentityNotConfirmed'
}

/** `born`: it was a copy of somebody until now, and gets what must be nobody else's. */
export async function applyIdentity(
  body: Vmm,
  identity: GuestIdentityBody & { hostname: string },
  { born }: { born: boolean },
  signal: AbortSignal,
): Promise<void> {
  const { session } = await body.channel(signal)
  const askedAt = performance.now()
  const machineId = randomBytes(16).toString('hex')
  const own = born ? { machine_id: machineId, renew_ssh_host_keys: true } : {}
  const answer = await callGuest(
    session,
    {
      method: 'POST',
      path: '/wake',
      body: {
        clock: timeNow(),
        entropy: randomBytes(64).toString('hex'),
        identity: { ...identity, ...own },
      },
      response: GuestWakeResponse,
    },
    signal,
  )
  const seen = answer.identity
  const confirmed =
    answer.clock !== undefined &&
    answer.entropy?.reseeded === true &&
    seen?.hostname === identity.hostname &&
    (!born || (seen.machine_id === machineId && seen.ssh_host_keys_left === 0))
  if (!confirmed) {
    throw new IdentityNotConfirmed(
      `the guest did not become ${identity.hostname}: ${JSON.stringify(answer).slice(0, 500)}`,
    )
  }
  if (performance.now() - askedAt > CLOCK_TRIP_MAX_MS) await setClock(session, signal)
}

const timeNow = () => ({ unix_ns: `${BigInt(Date.now()) * 1_000_000n}` })

/** A clock is wrong by at most as long as the news of the time took; on a machine that is busy that may be seconds. */
async function setClock(session: ClientHttp2Session, signal: AbortSignal): Promise<void> {
  for (let i = 0; i < CLOCK_TRIES; i++) {
    const askedAt = performance.now()
    const request = { method: 'POST', path: '/clock', body: timeNow(), response: GuestClockResponse } as const
    await callGuest(session, request, signal)
    if (performance.now() - askedAt <= CLOCK_TRIP_MAX_MS) return
  }
}

/** A base has a disk of one size; whoever asked for more gets it once the guest runs. */
export async function growDisk(body: Vmm, diskMib: number, signal: AbortSignal): Promise<void> {
  const bytes = diskMib * 1024 * 1024
  await body.qmp.run('block_resize', { 'node-name': diskNode(await body.newestDisk()), size: bytes })
  const { session } = await body.channel(signal)
  const request = { method: 'POST', path: '/grow', body: { device_bytes: bytes }, response: GuestGrowResponse } as const
  await callGuest(session, request, signal)
}
