import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Value } from 'typebox/value'
import { encodeBase64 } from './base64.ts'
import {
  checkProcessCommand,
  checkProcessInput,
  isProcessEnded,
  PROCESS_INPUT_MAX_BYTES,
  PROCESS_MOVES,
  PROCESS_STATES,
  ProcessCreateBody,
  ProcessDeleteQuery,
  ProcessResizeBody,
  ProcessSignalBody,
  ProcessView,
  ProcessWaitQuery,
  processCan,
  processWaitMs,
} from './process.ts'

const running: ProcessView = {
  process_id: 'proc_01',
  kind: 'pty',
  pid: 42,
  state: 'running',
  leader_exited: false,
  tree_exited: false,
  created_at: '2026-01-02T03:04:05.000006Z',
  finished_at: null,
  exit_code: null,
  output: { oldest_seq: 0, newest_seq: 0, bytes: 0 },
  cmd: '/bin/bash',
  args: ['-l'],
  cwd: '/root',
}

test('every state except starting, the initial one, is reached by a transition', () => {
  const reachable = new Set<string>(Object.values(PROCESS_MOVES).map((move) => move.to))

  assert.deepEqual(
    PROCESS_STATES.filter((state) => !reachable.has(state)),
    ['starting'],
  )
})

test('no transition leaves a final state', () => {
  for (const state of PROCESS_STATES) {
    const moves = Object.keys(PROCESS_MOVES).filter((move) => processCan(move as keyof typeof PROCESS_MOVES, state))
    assert.equal(moves.length === 0, isProcessEnded(state), state)
  }
})

test('a running process has null for its end, and a killed one names the signal', () => {
  assert.ok(Value.Check(ProcessView, running))
  assert.ok(Value.Check(ProcessView, { ...running, signal: 'SIGRTMIN+3', finished_at: running.created_at }))
  assert.ok(!Value.Check(ProcessView, { ...running, signal: null }))
  assert.ok(!Value.Check(ProcessView, { ...running, state: 'killed' }))
})

test('a plain process needs a command, a PTY does not', () => {
  assert.equal(checkProcessCommand({ cmd: 'ls' }), undefined)
  assert.equal(checkProcessCommand({ pty: {} }), undefined)
  assert.equal(checkProcessCommand({ cmd: '', pty: { rows: 0 } }), undefined)
  assert.match(checkProcessCommand({ args: ['-l'] }) ?? '', /required/)
  assert.match(checkProcessCommand({ cmd: null, pty: null }) ?? '', /required/)
})

test('null means absent in a create body, and terminal dimensions have 16 bits', () => {
  assert.ok(
    Value.Check(ProcessCreateBody, { cmd: null, args: null, cwd: null, env: null, pty: { rows: null, cols: 0 } }),
  )
  assert.ok(!Value.Check(ProcessCreateBody, { pty: { rows: 65_536 } }))
  assert.ok(!Value.Check(ProcessCreateBody, { cmd: 'ls', env: { 'A B': '' } }))
  assert.ok(!Value.Check(ProcessResizeBody, { rows: 0, cols: 80 }))
})

test('input is measured after decoding', () => {
  const largest = new Uint8Array(PROCESS_INPUT_MAX_BYTES)

  assert.equal(checkProcessInput(''), undefined)
  assert.equal(checkProcessInput(encodeBase64(largest)), undefined)
  assert.match(checkProcessInput(encodeBase64(new Uint8Array([...largest, 0]))) ?? '', /262144 bytes/)
  assert.match(checkProcessInput('not*base64') ?? '', /not base64/)
})

test('only the listed signals can be sent', () => {
  assert.ok(Value.Check(ProcessSignalBody, { signal: 'SIGWINCH' }))
  assert.ok(!Value.Check(ProcessSignalBody, { signal: 'SIGSTOP' }))
  assert.ok(!Value.Check(ProcessSignalBody, { signal: 'TERM' }))
})

test('a wait without a limit, or with too long a limit, lasts 30 seconds', () => {
  assert.equal(processWaitMs({}), 30_000)
  assert.equal(processWaitMs({ timeout_ms: 0 }), 30_000)
  assert.equal(processWaitMs({ timeout_ms: 90_000 }), 30_000)
  assert.equal(processWaitMs({ timeout_ms: 5 }), 5)
  assert.ok(!Value.Check(ProcessWaitQuery, { timeout_ms: -1 }))
  assert.ok(!Value.Check(ProcessWaitQuery, { scope: 'all' }))
})

test('the grace period is at most one minute', () => {
  assert.ok(Value.Check(ProcessDeleteQuery, { grace_ms: 60_000 }))
  assert.ok(!Value.Check(ProcessDeleteQuery, { grace_ms: 60_001 }))
})
