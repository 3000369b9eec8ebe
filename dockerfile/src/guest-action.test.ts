import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { test } from 'node:test'
import { evaluateStage } from './evaluate.ts'
import { guestActionOf } from './guest-action.ts'
import { EMPTY_IMAGE } from './image.ts'
import { parseDockerfile } from './parse.ts'
import { openStages } from './stages.ts'
import type { RunStep, WorkdirStep } from './step.ts'

function actionsOf(...lines: string[]) {
  const { scope, stages } = openStages(parseDockerfile(['FROM x', ...lines].join('\n')), 'amd64')
  const { steps } = evaluateStage(scope, { ...EMPTY_IMAGE, env: {} }, stages[0]!)
  return (steps as (RunStep | WorkdirStep)[]).map(guestActionOf)
}

const ROOT = { user: 'root', group: undefined }

test('a command runs in its shell as root in /, with nothing but its own environment', () => {
  assert.deepEqual(actionsOf('ENV A=1', 'ARG B=2', 'RUN make'), [
    { kind: 'exec', argv: ['/bin/sh', '-c', 'make'], env: { A: '1', B: '2' }, cwd: '/', owner: ROOT, files: [] },
  ])
})

test('SHELL, USER and WORKDIR decide how it runs', () => {
  assert.deepEqual(actionsOf('SHELL ["bash", "-c"]', 'USER app:staff', 'WORKDIR /app', 'RUN make', 'RUN ["make"]'), [
    { kind: 'makeFolder', path: '/app', mode: 0o755, owner: { user: 'app', group: 'staff' } },
    {
      kind: 'exec',
      argv: ['bash', '-c', 'make'],
      env: {},
      cwd: '/app',
      owner: { user: 'app', group: 'staff' },
      files: [],
    },
    { kind: 'exec', argv: ['make'], env: {}, cwd: '/app', owner: { user: 'app', group: 'staff' }, files: [] },
  ])
})

test('a heredoc with an interpreter is an executable file outside the image', () => {
  assert.deepEqual(actionsOf('RUN <<EOF', '#!/usr/bin/python3', 'print(1)', 'EOF'), [
    {
      kind: 'exec',
      argv: ['/bin/sh', '-c', '/dev/pipes/EOF'],
      env: {},
      cwd: '/',
      owner: ROOT,
      files: [{ path: '/dev/pipes/EOF', mode: 0o755, content: '#!/usr/bin/python3\nprint(1)\n' }],
    },
  ])
})

test('a user can be a name or a number, with or without a group', () => {
  const owners = ['USER 1000', 'USER 1000:1000', 'USER app:', 'USER :staff', 'USER $UNSET'].map(
    (user) => actionsOf(user, 'RUN make')[0]?.owner,
  )

  assert.deepEqual(owners, [
    { user: '1000', group: undefined },
    { user: '1000', group: '1000' },
    { user: 'app', group: undefined },
    { user: 'root', group: 'staff' },
    ROOT,
  ])
})

test('a shell that runs the action sees the heredocs as they were written', () => {
  const [action] = actionsOf(
    'ENV A=value',
    'RUN cat <<ONE && cat <<-"TWO" && cat << THREE',
    '$A \\$A "$A"',
    'ONE',
    '\t$A\\',
    '\tTWO',
    'three',
    'THREE',
  )

  assert.equal(action?.kind === 'exec' ? run(action) : undefined, 'value $A "value"\n$A\\\nthree\n')
})

test('a script that is a heredoc runs as it was written', () => {
  const [action] = actionsOf(
    'ENV A=value',
    'RUN <<EOF',
    'set -e',
    'for i in 1 2; do',
    '  echo "$i $A" \\',
    '    end',
    'done',
    'EOF',
  )

  assert.equal(action?.kind === 'exec' ? run(action) : undefined, '1 value end\n2 value end\n')
})

function run({ argv, env, cwd }: Extract<ReturnType<typeof guestActionOf>, { kind: 'exec' }>): string {
  const [program = '', ...args] = argv
  return spawnSync(program, args, { env: { PATH: process.env.PATH, ...env }, cwd, encoding: 'utf8' }).stdout
}
