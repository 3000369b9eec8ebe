/** Go and Rust: one program is built into the folder of the project. */
import { commandRun, type Parts } from './parts.ts'
import type { Project } from './project.ts'

const GO_PROGRAM = './bin/app'

export function detectGo(project: Project): Parts {
  const sources = project.list().filter((file) => file.endsWith('.go') && !file.endsWith('_test.go'))
  const isMain = (file: string): boolean => /^package main\s*$/m.test(project.text(file) ?? '')
  const main = sources.filter(isMain).toSorted((a, b) => a.split('/').length - b.split('/').length)[0]
  const folder = main?.includes('/') ? `./${main.slice(0, main.lastIndexOf('/'))}` : '.'
  return {
    runtime: 'golang',
    notes: [],
    install: 'go mod download',
    build: `go build -o ${GO_PROGRAM} ${/^[\w./-]+$/.test(folder) ? folder : '.'}`,
    run: commandRun(GO_PROGRAM),
  }
}

export function detectRust(project: Project): Parts {
  const manifest = project.text('Cargo.toml') ?? ''
  const packageTable = /^\[package\]\s*$([\s\S]*)/m.exec(manifest)?.[1]?.split(/^\[/m)[0] ?? ''
  const name = /^name\s*=\s*"([\w-]+)"/m.exec(packageTable)?.[1]
  return {
    runtime: 'rust',
    notes: [],
    install: undefined,
    build: 'cargo build --release',
    run: name === undefined ? undefined : commandRun(`./target/release/${name}`),
  }
}
