/**
 * Creating, pausing, resuming, forking and destroying sandboxes with plain requests. Statuses are polled more often than
 * by a real client, so that many cycles fit into a minute.
 */
import assert from 'node:assert/strict'
import { setTimeout as delay } from 'node:timers/promises'
import { scaleLimit } from '@warren/kit/testing/slowness'
import type { Instance } from './instance.ts'

export type SandboxView = {
  id: string
  name: string
  status: string
  status_reason?: string
  ip?: string
  forked_from?: string
}
/** A VmInstance is one. */
export type Target = { instance: Pick<Instance, 'baseUrl' | 'key'> }
type ApiResponse = { status: number; data: Record<string, unknown> }

/** Generous: an emulated VM on a busy machine is slow. */
const STATUS_LIMIT_MS = scaleLimit(60_000)
const POLL_MS = 15
const RETRY_MS = 500

/** Returns whatever the API responds. */
export async function request({ instance }: Target, method: string, path: string, body?: object): Promise<ApiResponse> {
  const response = await fetch(`${instance.baseUrl}/v1${path}`, {
    method,
    headers: { 'x-api-key': instance.key },
    ...(body ? { body: JSON.stringify(body) } : {}),
  })
  const envelope = (await response.json()) as { message?: string; data?: Record<string, unknown> }
  return { status: response.status, data: envelope.data ?? { message: envelope.message } }
}

/** Fails unless the API responds with success. Retries after 503, as every client does while a host restarts. */
export async function requestOk(
  warren: Target,
  method: string,
  path: string,
  body?: object,
): Promise<Record<string, unknown>> {
  for (const deadline = Date.now() + STATUS_LIMIT_MS; ; await delay(RETRY_MS)) {
    const { status, data } = await request(warren, method, path, body)
    if (status < 300) return data
    assert.ok(status === 503 && Date.now() < deadline, `${method} ${path}: ${status} ${JSON.stringify(data)}`)
  }
}

export const getSandbox = async (warren: Target, id: string): Promise<SandboxView> =>
  (await requestOk(warren, 'GET', `/sandboxes/${id}`)) as SandboxView

export async function createSandbox(warren: Target, body: object = {}): Promise<SandboxView> {
  return (await requestOk(warren, 'POST', '/sandboxes', { shape: 's-1vcpu-256mb', ...body })) as SandboxView
}

/** Polls until the sandbox has the status. Fails at once when it has settled in another one. */
export async function waitForStatus(
  warren: Target,
  id: string,
  wanted: string,
  limitMs = STATUS_LIMIT_MS,
): Promise<SandboxView> {
  for (const deadline = Date.now() + limitMs; ; await delay(POLL_MS)) {
    const sandbox = await getSandbox(warren, id)
    if (sandbox.status === wanted) return sandbox
    const hasSettled = ['running', 'paused', 'error', 'failed', 'destroyed'].includes(sandbox.status)
    assert.ok(!hasSettled, `${id} is ${sandbox.status} instead of ${wanted}: ${sandbox.status_reason}`)
    assert.ok(Date.now() < deadline, `${id} is still ${sandbox.status} after ${limitMs} ms`)
  }
}

export async function pauseSandbox(warren: Target, id: string): Promise<SandboxView> {
  await requestOk(warren, 'POST', `/sandboxes/${id}/pause`)
  return waitForStatus(warren, id, 'paused')
}

export async function resumeSandbox(warren: Target, id: string): Promise<SandboxView> {
  await requestOk(warren, 'POST', `/sandboxes/${id}/resume`)
  return waitForStatus(warren, id, 'running')
}

export async function forkSandbox(warren: Target, id: string, body: object = {}): Promise<SandboxView> {
  const child = (await requestOk(warren, 'POST', `/sandboxes/${id}/fork`, body)) as SandboxView
  return waitForStatus(warren, child.id, 'start_paused' in body ? 'paused' : 'running')
}

export async function destroySandbox(warren: Target, id: string): Promise<void> {
  await requestOk(warren, 'DELETE', `/sandboxes/${id}`)
  await waitForStatus(warren, id, 'destroyed')
}

/** Runs a script, which must succeed, and returns its stdout. */
export async function runShell(warren: Target, id: string, script: string): Promise<string> {
  const data = await requestOk(warren, 'POST', `/sandboxes/${id}/exec`, { cmd: 'sh', args: ['-c', script] })
  const result = data.result as { stdout: string; stderr: string; exit_code: number }
  assert.equal(result.exit_code, 0, `${script}: ${result.stdout}${result.stderr}`)
  return result.stdout.trim()
}

/** Waits in the guest until a command succeeds, which costs one request. Fails after about a minute. */
export async function untilInGuest(warren: Target, id: string, condition: string): Promise<void> {
  await runShell(warren, id, `for try in $(seq 600); do ${condition} && exit; sleep 0.1; done; exit 1`)
}
