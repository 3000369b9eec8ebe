/**
 * What a guest receives before anyone may use it: the time, fresh entropy, its address, hostname, environment and keys. The
 * guest confirms each of them.
 */
import { randomBytes } from 'node:crypto'
import type { ClientHttp2Session } from 'node:http2'
import { type GuestAgentInfo, GuestClockResponse, type GuestIdentityBody, GuestWakeResponse } from '@warren/protocol'
import { callGuest } from '../guest/call-guest.ts'
import { ownsAddress } from './guest-agent.ts'
import type { Vmm } from './vmm.ts'

/** A clock is off by as long as the message with the time took. */
const CLOCK_TRIP_MAX_MS = 50
const CLOCK_TRIES = 5

export class IdentityNotConfirmed extends Error {
  override name = 'IdentityNotConfirmed'
}

/**
 * `isNew`: the guest is a copy of another one until now, and also gets a machine id and SSH host keys that no other
 * guest has. A guest whose agent cannot change its address does not receive one (guest-agent.ts).
 */
export async function applyIdentity(
  vmm: Vmm,
  { address: ip, ...rest }: GuestIdentityBody & { hostname: string },
  { isNew }: { isNew: boolean },
  signal: AbortSignal,
): Promise<void> {
  const address = ip !== undefined && ownsAddress(vmm.record.agent) ? { address: ip } : {}
  const identity = { ...rest, ...address }
  const { session } = await vmm.channel(signal)
  const sentAt = performance.now()
  const machineId = randomBytes(16).toString('hex')
  const unique = isNew ? { machine_id: machineId, renew_ssh_host_keys: true } : {}
  const response = await callGuest(
    session,
    {
      method: 'POST',
      path: '/wake',
      body: {
        clock: timeNow(),
        entropy: randomBytes(64).toString('hex'),
        identity: { ...identity, ...unique },
      },
      response: GuestWakeResponse,
    },
    signal,
  )
  const applied = response.identity
  const confirmed =
    response.clock !== undefined &&
    response.entropy?.reseeded === true &&
    applied?.hostname === identity.hostname &&
    (identity.address === undefined || applied.address === identity.address) &&
    (!isNew || (applied.machine_id === machineId && applied.ssh_host_keys_left === 0))
  if (!confirmed) {
    const text = JSON.stringify(response).slice(0, 500)
    throw new IdentityNotConfirmed(`the guest did not confirm its identity as ${identity.hostname}: ${text}`)
  }
  noteVersion(vmm, response.agent)
  if (performance.now() - sentAt > CLOCK_TRIP_MAX_MS) await setClock(session, signal)
}

/** What the agent can do was known before the guest ran, and decided its network: the guest's word does not change it. */
function noteVersion({ record }: Vmm, reported: GuestAgentInfo | undefined): void {
  if (record.agent && reported?.version) record.agent = { protocol: record.agent.protocol, version: reported.version }
}

const timeNow = () => ({ unix_ns: `${BigInt(Date.now()) * 1_000_000n}` })

/** Repeated until one message was fast enough, since on a busy machine one may take seconds. */
async function setClock(session: ClientHttp2Session, signal: AbortSignal): Promise<void> {
  for (let i = 0; i < CLOCK_TRIES; i++) {
    const sentAt = performance.now()
    const request = { method: 'POST', path: '/clock', body: timeNow(), response: GuestClockResponse } as const
    await callGuest(session, request, signal)
    if (performance.now() - sentAt <= CLOCK_TRIP_MAX_MS) return
  }
}
