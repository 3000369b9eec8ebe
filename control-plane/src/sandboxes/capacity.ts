import { unavailable } from '@warren/kit/failure'

/** Sent as `Retry-After`. Clients wait for as long as it says, so it must stay short. */
export const CAPACITY_RETRY_S = 2

/** The 503 when a sandbox does not fit on the host that the caller chose or, without a choice, on any host of the region. */
export const noCapacity = ({ shape, region, hostId }: { shape: string; region: string; hostId?: string | undefined }) =>
  unavailable(hostId === undefined ? `no capacity for ${shape} in ${region}` : `host ${hostId} cannot fit ${shape}`, {
    retryAfterSeconds: CAPACITY_RETRY_S,
  })
