/**
 * What the agent of a guest can do. A paused sandbox keeps the agent it was saved with, so a host meets agents of all earlier
 * versions. Each start uses what the guest's agent can do, and a resume reports what it cannot.
 */
import { GUEST_PROTOCOL, type GuestAgentInfo } from '@warren/protocol'
import { INITIAL_GUEST_ADDRESS } from '../net/names.ts'

/** Undefined: it was started or saved by a version that did not record its agent. */
type Agent = GuestAgentInfo | undefined

export const ownsAddress = (agent: Agent): boolean =>
  (agent?.protocol ?? GUEST_PROTOCOL.FIRST) >= GUEST_PROTOCOL.OWN_ADDRESS

/** The address that the guest sends from: its sandbox's, or the one that its slot maps to that. */
export const chooseGuestAddress = (agent: Agent, ip: string): string =>
  ownsAddress(agent) ? ip : INITIAL_GUEST_ADDRESS

/** For the user: what differs from a sandbox with the current agent. Empty for a current one. */
export const listLimits = (agent: Agent, ip: string): string[] =>
  ownsAddress(agent) ? [] : [`inside the guest its address is ${INITIAL_GUEST_ADDRESS} instead of ${ip}`]
