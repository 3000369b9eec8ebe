/** Eight clients throw pause, resume, fork and delete at one sandbox and its children: nobody ends up nowhere. */
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
import { cannotRunVms, SOAK, startVmInstance, VM_STORIES_LIMIT_MS } from './support/vm-instance.ts'

const warren = cannotRunVms
  ? (undefined as never)
  : await startVmInstance({ WARREN_POOL_MIB: '0', WARREN_STANDBY_MIB: '120' })
const CLIENTS = 8
const SECONDS = SOAK ? 120 : 20
const CHILDREN_MAX = 6

/** What the spec allows each to answer, whatever the others do. */
const ALLOWED = {
  pause: [202, 409],
  resume: [202, 409],
  fork: [202, 409],
  'live fork': [202, 409],
  delete: [200, 404],
  get: [200],
} as const
type Operation = keyof typeof ALLOWED

describe('many hands on one sandbox', { skip: cannotRunVms, timeout: VM_STORIES_LIMIT_MS }, () => {
  test(`${CLIENTS} clients for ${SECONDS} s: every answer is one the spec allows, and all of it settles`, async () => {
    const { id } = await createSandbox(warren)
    await startChain(warren, id)
    const seen = await checkChainOnDisk(warren, id, 1)
    const children: string[] = []
    const answers = new Map<string, number>()
    const end = Date.now() + SECONDS * 1000

    const client = async () => {
      while (Date.now() < end) {
        const [operation, answer] = await throwOne(id, children)
        assert.ok(
          (ALLOWED[operation] as readonly number[]).includes(answer.status),
          `${operation}: ${JSON.stringify(answer)}`,
        )
        answers.set(`${operation} ${answer.status}`, (answers.get(`${operation} ${answer.status}`) ?? 0) + 1)
      }
    }
    await Promise.all(Array.from({ length: CLIENTS }, client))

    for (const one of [id, ...children]) await settled(one)
    for (const child of children) {
      const { status } = await getSandbox(warren, child)
      assert.ok(['running', 'paused', 'destroyed', 'error'].includes(status), status)
      if (status !== 'destroyed') await destroySandbox(warren, child)
    }
    const { status, status_reason } = await getSandbox(warren, id)
    assert.ok(['running', 'paused'].includes(status), `${status}: ${status_reason}`)
    if (status === 'paused') await resumeSandbox(warren, id)
    await checkChainOnDisk(warren, id, seen)
    assert.ok((answers.get('pause 202') ?? 0) > 1 && (answers.get('resume 202') ?? 0) > 1, JSON.stringify([...answers]))
    await destroySandbox(warren, id)
  })
})

async function throwOne(id: string, children: string[]): Promise<[Operation, { status: number; data: object }]> {
  const dice = Math.random()
  if (dice < 0.35) return ['pause', await request(warren, 'POST', `/sandboxes/${id}/pause`)]
  if (dice < 0.7) return ['resume', await request(warren, 'POST', `/sandboxes/${id}/resume`)]
  if (dice < 0.8 && children.length < CHILDREN_MAX) {
    const live = Math.random() < 0.5
    const answer = await request(warren, 'POST', `/sandboxes/${id}/fork`, { start_paused: true, live })
    if (answer.status === 202) children.push((answer.data as SandboxView).id)
    return [live ? 'live fork' : 'fork', answer]
  }
  const child = children[Math.floor(Math.random() * children.length)]
  if (dice < 0.9 && child !== undefined) return ['delete', await request(warren, 'DELETE', `/sandboxes/${child}`)]
  return ['get', await request(warren, 'GET', `/sandboxes/${id}`)]
}

async function settled(id: string): Promise<void> {
  await until(
    async () =>
      !['creating', 'pausing', 'resuming', 'forking', 'destroying'].includes((await getSandbox(warren, id)).status),
    `${id} is settled`,
    30_000,
  )
}
