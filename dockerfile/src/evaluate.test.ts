/** What recorded.jsonl cannot show: bases with a configuration, several stages, and limits. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { evaluateStage } from './evaluate.ts'
import { EMPTY_IMAGE, type ImageConfig } from './image.ts'
import { parseDockerfile } from './parse.ts'
import { expandGlobal, openStages } from './stages.ts'

function evaluate(text: string, base: Partial<ImageConfig> = {}) {
  const { scope, stages } = openStages(parseDockerfile(text), 'amd64')
  return evaluateStage(scope, { ...EMPTY_IMAGE, ...base }, stages[0]!)
}

test('a stage begins with the configuration of its base', () => {
  const base = { env: { LANG: 'C' }, user: 'app', workdir: '/app', shell: ['/bin/bash', '-c'] }

  const { steps } = evaluate('FROM x\nWORKDIR src\nRUN make $LANG', base)

  assert.deepEqual(steps, [
    { kind: 'workdir', line: 2, text: 'WORKDIR src', env: { LANG: 'C' }, user: 'app', workdir: '/app/src' },
    {
      kind: 'run',
      line: 3,
      text: 'RUN make $LANG',
      env: { LANG: 'C' },
      user: 'app',
      workdir: '/app/src',
      argv: ['/bin/bash', '-c', 'make $LANG'],
      script: undefined,
    },
  ])
})

test('the base is not changed', () => {
  const base = structuredClone(EMPTY_IMAGE)

  evaluate('FROM x\nENV A=1\nLABEL a=b\nEXPOSE 80\nVOLUME /x\nUSER me', base)

  assert.deepEqual(base, EMPTY_IMAGE)
})

test('an ENTRYPOINT drops the CMD of the base, but not one of the same file', () => {
  const base = { cmd: ['old'] }

  assert.equal(evaluate('FROM x\nENTRYPOINT ["a"]', base).image.cmd, undefined)
  assert.deepEqual(evaluate('FROM x\nCMD ["new"]\nENTRYPOINT ["a"]', base).image.cmd, ['new'])
  assert.deepEqual(evaluate('FROM x\nENV A=1', base).image.cmd, ['old'])
})

test('steps share their environment until it changes', () => {
  const { steps } = evaluate('FROM x\nRUN a\nRUN b\nENV A=1\nRUN c')

  assert.equal(steps[0]?.env, steps[1]?.env)
  assert.notEqual(steps[1]?.env, steps[2]?.env)
})

test('COPY steps have absolute destinations, and files with replaced variables', () => {
  const { steps } = evaluate(
    'FROM x\nENV V=1\nWORKDIR /app\nCOPY --from=b --chown=$V a$V <<EOF <<"RAW" ./\n$V\nEOF\n$V\nRAW',
  )

  const { sources, files, destination, from, chown } = { ...steps[1]! } as Extract<
    (typeof steps)[number],
    { kind: 'copy' | 'add' }
  >
  assert.deepEqual(
    { sources, destination, from, chown },
    { sources: ['a1'], destination: '/app/', from: 'b', chown: '1' },
  )
  assert.deepEqual(files, [
    { name: 'EOF', content: '1\n' },
    { name: 'RAW', content: '$V\n' },
  ])
})

test('stages share the ARGs before the first FROM and nothing else', () => {
  const text = 'ARG TAG=1\nFROM a:$TAG AS build\nARG TAG\nENV A=$TAG\nFROM b:$TAG\nENV B=[$TAG$A]'

  const { scope, stages } = openStages(parseDockerfile(text), 'arm64')

  assert.deepEqual(
    stages.map(({ from }) => [expandGlobal(scope, from.image), from.stage]),
    [
      ['a:1', 'build'],
      ['b:1', undefined],
    ],
  )
  assert.equal(evaluateStage(scope, EMPTY_IMAGE, stages[0]!).image.env.A, '1')
  assert.equal(evaluateStage(scope, EMPTY_IMAGE, stages[1]!).image.env.B, '[]')
})

test('a variable can have the name of a property that every object has', () => {
  const { image, steps } = evaluate(
    'FROM x\nENV __proto__=a constructor=b\nENV C=$__proto__$constructor$toString\nRUN c',
  )

  assert.equal(image.env.C, 'ab')
  assert.deepEqual(Object.entries(steps[0]!.env).slice(-3), [
    ['__proto__', 'a'],
    ['constructor', 'b'],
    ['C', 'ab'],
  ])
})
