import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Value } from 'typebox/value'
import { FAILURE_STATUS } from './failure.ts'
import { offsetExpiredFail, offsetExpiredFrame, ProcessFrame } from './process-stream.ts'

test('only the four types of lines are valid', () => {
  const data = { type: 'data', seq: 1, stream: 'pty', data_base64: 'aGk=' }

  for (const frame of [
    data,
    { type: 'exit', exit_code: 0 },
    { type: 'exit', signal: 'SIGKILL' },
    { type: 'heartbeat' },
    offsetExpiredFrame(5),
  ]) {
    assert.ok(Value.Check(ProcessFrame, frame), JSON.stringify(frame))
  }
  for (const frame of [
    { ...data, seq: 0 },
    { ...data, stream: 'stdin' },
    { type: 'exit' },
    { type: 'exit', exit_code: null },
    { type: 'resize' },
  ]) {
    assert.ok(!Value.Check(ProcessFrame, frame), JSON.stringify(frame))
  }
})

test('the 410 names the oldest available event, as a string', () => {
  const fail = offsetExpiredFail(5)

  assert.deepEqual(fail, {
    message: 'output offset expired',
    code: 'output_offset_expired',
    oldest_available_seq: '5',
  })
  assert.equal(FAILURE_STATUS[fail.code], 410)
})
