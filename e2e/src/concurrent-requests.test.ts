/** Eight clients send pause, resume, fork and delete to one sandbox and its forks at random: every state stays valid. */
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { checkChainOnDisk, startChain } from './support/hash-chain.ts'
import {
  createSandbox,
  destroySandbox,
  getSandbox,
  request,
  resumeSandbox,
  type SandboxView,
} from './support/sandboxes.ts'
import { cannotRunVms, SOAK, startUnlessSkipped, startVmInstance, VM_STORIES_LIMIT_MS } from './support/vm-instance.ts'

const warren = await startUnlessSkipped(cannotRunVms, () =>
  startVmInstance({ WARREN_POOL_MIB: '0', WARREN_STANDBY_MIB: '120' }),
)
const CLIENTS = 8
const SECONDS = SOAK ? 120 : 20
const CHILDREN_MAX = 6

/** The statuses that each request may get, whatever the other clients do. */
const ALLOWED = {
  pause: [202, 409],
  resume: [202, 409],
  fork: [202, 409],
  'live fork': [202, 409],
  delete: [200, 404],
  get: [200],
} as const
type Operation = keyof typeof ALLOWED

describe('concurrent requests to one sandbox', { skip: cannotRunVms, timeout: VM_STORIES_LIMIT_MS }, () => {
  test(`${CLIENTS} clients for ${SECONDS} s get only allowed statuses, and every sandbox settles`, async () => {
    const { id } = await createSandbox(warren)
    await startChain(warren, id)
    const seen = await checkChainOnDisk(warren, id, 1)
    const children: string[] = []
    const responses = new Map<string, number>()
    const end = Date.now() + SECONDS * 1000

    const client = async () => {
      while (Date.now() < end) {
        const [operation, response] = await sendRandom(id, children)
        assert.ok(
          (ALLOWED[operation] as readonly number[]).includes(response.status),
          `${operation}: ${JSON.stringify(response)}`,
        )
        responses.set(`${operation} ${response.status}`, (responses.get(`${operation} ${response.status}`) ?? 0) + 1)
      }
    }
    await Promise.all(Array.from({ length: CLIENTS }, client))

    for (const one of [id, ...children]) await waitUntilSettled(one)
    for (const child of children) {
      const { status } = await getSandbox(warren, child)
      assert.ok(['running', 'paused', 'destroyed', 'error'].includes(status), status)
      if (status !== 'destroyed') await destroySandbox(warren, child)
    }
    const { status, status_reason } = await getSandbox(warren, id)
    assert.ok(['running', 'paused'].includes(status), `${status}: ${status_reason}`)
    if (status === 'paused') await resumeSandbox(warren, id)
    await checkChainOnDisk(warren, id, seen)
    assert.ok(
      (responses.get('pause 202') ?? 0) > 1 && (responses.get('resume 202') ?? 0) > 1,
      JSON.stringify([...responses]),
    )
    await destroySandbox(warren, id)
  })
})

async function sendRandom(id: string, children: string[]): Promise<[Operation, { status: number; data: object }]> {
  const dice = Math.random()
  if (dice < 0.35) return ['pause', await request(warren, 'POST', `/sandboxes/${id}/pause`)]
  if (dice < 0.7) return ['resume', await request(warren, 'POST', `/sandboxes/${id}/resume`)]
  if (dice < 0.8 && children.length < CHILDREN_MAX) {
    const live = Math.random() < 0.5
    const response = await request(warren, 'POST', `/sandboxes/${id}/fork`, { start_paused: true, live })
    if (response.status === 202) children.push((response.data as SandboxView).id)
    return [live ? 'live fork' : 'fork', response]
  }
  const child = children[Math.floor(Math.random() * children.length)]
  if (dice < 0.9 && child !== undefined) return ['delete', await request(warren, 'DELETE', `/sandboxes/${child}`)]
  return ['get', await request(warren, 'GET', `/sandboxes/${id}`)]
}

async function waitUntilSettled(id: string): Promise<void> {
  await until(
    async () =>
      !['creating', 'pausing', 'resuming', 'forking', 'destroying'].includes((await getSandbox(warren, id)).status),
    `${id} is settled`,
    30_000,
  )
}
