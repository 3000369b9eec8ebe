/** Pausing, resuming and forking in stories: by plain requests, looking often, so that many cycles fit into a minute. */
import assert from 'node:assert/strict'
import { setTimeout as delay } from 'node:timers/promises'
import type { VmBox } from './vm-box.ts'

export type View = {
  id: string
  name: string
  status: string
  status_reason?: string
  ip?: string
  forked_from?: string
}
type Answer = { status: number; data: Record<string, unknown> }

/** An emulated machine on a busy one takes its time. */
const SETTLE_LIMIT_MS = 60_000
const LOOK_MS = 15
const AGAIN_MS = 500

export async function call({ box }: VmBox, method: string, path: string, body?: object): Promise<Answer> {
  const response = await fetch(`${box.baseUrl}/v1${path}`, {
    method,
    headers: { 'x-api-key': box.key },
    ...(body ? { body: JSON.stringify(body) } : {}),
  })
  const answer = (await response.json()) as { message?: string; data?: Record<string, unknown> }
  return { status: response.status, data: answer.data ?? { message: answer.message } }
}

/** Whatever must succeed. 503 is tried again, as every client does: a host that was killed is away for a moment. */
export async function must(it: VmBox, method: string, path: string, body?: object): Promise<Record<string, unknown>> {
  for (const deadline = Date.now() + SETTLE_LIMIT_MS; ; await delay(AGAIN_MS)) {
    const { status, data } = await call(it, method, path, body)
    if (status < 300) return data
    assert.ok(status === 503 && Date.now() < deadline, `${method} ${path}: ${status} ${JSON.stringify(data)}`)
  }
}

export const view = async (it: VmBox, id: string): Promise<View> => (await must(it, 'GET', `/sandboxes/${id}`)) as View

export async function create(it: VmBox, body: object = {}): Promise<View> {
  return (await must(it, 'POST', '/sandboxes', { shape: 's-1vcpu-256mb', ...body })) as View
}

/** Looks until it has the status; one that it can no longer reach fails at once. */
export async function settle(it: VmBox, id: string, wanted: string, limitMs = SETTLE_LIMIT_MS): Promise<View> {
  for (const deadline = Date.now() + limitMs; ; await delay(LOOK_MS)) {
    const seen = await view(it, id)
    if (seen.status === wanted) return seen
    const settled = ['running', 'paused', 'error', 'failed', 'destroyed'].includes(seen.status)
    assert.ok(!settled, `${id} is ${seen.status} instead of ${wanted}: ${seen.status_reason}`)
    assert.ok(Date.now() < deadline, `${id} is still ${seen.status} after ${limitMs} ms`)
  }
}

export async function pause(it: VmBox, id: string): Promise<View> {
  await must(it, 'POST', `/sandboxes/${id}/pause`)
  return settle(it, id, 'paused')
}

export async function resume(it: VmBox, id: string): Promise<View> {
  await must(it, 'POST', `/sandboxes/${id}/resume`)
  return settle(it, id, 'running')
}

export async function fork(it: VmBox, id: string, body: object = {}): Promise<View> {
  const child = (await must(it, 'POST', `/sandboxes/${id}/fork`, body)) as View
  return settle(it, child.id, 'start_paused' in body ? 'paused' : 'running')
}

export async function destroy(it: VmBox, id: string): Promise<void> {
  await must(it, 'DELETE', `/sandboxes/${id}`)
  await settle(it, id, 'destroyed')
}

/** Standard output of a script that must succeed. */
export async function sh(it: VmBox, id: string, script: string): Promise<string> {
  const data = await must(it, 'POST', `/sandboxes/${id}/exec`, { cmd: 'sh', args: ['-c', script] })
  const result = data.result as { stdout: string; stderr: string; exit_code: number }
  assert.equal(result.exit_code, 0, `${script}: ${result.stdout}${result.stderr}`)
  return result.stdout.trim()
}
