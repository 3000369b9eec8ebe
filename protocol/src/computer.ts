/**
 * The desktop of a sandbox: mouse, keyboard, clipboard, programs (spec 4.12; wire 14). Screens and windows have files
 * of their own. Actions answer `{ok: true}`, and an empty body means the defaults.
 */
import { type Static, Type } from 'typebox'
import { optionalNull } from './optional-null.ts'
import { Pixels, SideLength } from './screen.ts'

/** Ours: a single call does not scroll or click for minutes. */
const REPEAT_MAX = 100
const TYPE_DELAY_MAX_MS = 1_000

/** Of every desktop operation; the primary screen if absent. */
export const ComputerQuery = Type.Object({ screen_id: Type.Optional(Type.String()) })
export type ComputerQuery = Static<typeof ComputerQuery>

/** Answers PNG bytes. */
export const ScreenshotQuery = Type.Object({
  screen_id: Type.Optional(Type.String()),
  window_id: Type.Optional(Type.String()),
  x: Type.Optional(Pixels),
  y: Type.Optional(Pixels),
  width: Type.Optional(SideLength),
  height: Type.Optional(SideLength),
})
export type ScreenshotQuery = Static<typeof ScreenshotQuery>

/** The offending field with its text: a whole rectangle or none of it, and not of a window. */
export function checkScreenshot(query: ScreenshotQuery): { field: string; text: string } | undefined {
  const sides = ['x', 'y', 'width', 'height'] as const
  const missing = sides.find((side) => query[side] === undefined)
  if (sides.every((side) => query[side] === undefined)) return undefined
  if (missing) return { field: missing, text: 'is required: a rectangle needs x, y, width and height' }
  return query.window_id ? { field: 'window_id', text: 'cannot be combined with a rectangle' } : undefined
}

export const ScreenSizeView = Type.Object({ width: Type.Integer(), height: Type.Integer() })
export type ScreenSizeView = Static<typeof ScreenSizeView>

export const CursorView = Type.Object({ x: Type.Integer(), y: Type.Integer() })
export type CursorView = Static<typeof CursorView>

/** Both what is put and what is got. */
export const Clipboard = Type.Object({ text: Type.String() })
export type Clipboard = Static<typeof Clipboard>

export const OpenBody = Type.Object({ target: Type.String({ minLength: 1, description: 'A file or a URL.' }) })
export type OpenBody = Static<typeof OpenBody>

export const LaunchBody = Type.Object({
  application: Type.String({ minLength: 1, description: 'Must be installed.' }),
  uri: optionalNull(Type.String()),
})
export type LaunchBody = Static<typeof LaunchBody>

export const MOUSE_BUTTONS = ['left', 'middle', 'right'] as const
export type MouseButton = (typeof MOUSE_BUTTONS)[number]
const Button = Type.Enum(MOUSE_BUTTONS, { description: 'Absent: left.' })

const Point = Type.Object({ x: Pixels, y: Pixels })

export const MouseMoveBody = Point
export type MouseMoveBody = Static<typeof MouseMoveBody>

export const MouseClickBody = Type.Object({
  button: optionalNull(Button),
  count: optionalNull(Type.Integer({ minimum: 1, maximum: REPEAT_MAX, description: 'Absent: 1.' })),
  x: optionalNull(Pixels),
  y: optionalNull(Pixels),
})
export type MouseClickBody = Static<typeof MouseClickBody>

/** The offending field with its text: both coordinates or neither. */
export function checkMouseClick(body: MouseClickBody): { field: 'x' | 'y'; text: string } | undefined {
  const hasX = typeof body.x === 'number'
  const hasY = typeof body.y === 'number'
  return hasX === hasY ? undefined : { field: hasX ? 'y' : 'x', text: 'is required: give both x and y, or neither' }
}

export const MouseScrollBody = Type.Object({
  direction: optionalNull(Type.Enum(['up', 'down'], { description: 'Absent: down.' })),
  amount: optionalNull(Type.Integer({ minimum: 1, maximum: REPEAT_MAX, description: 'Steps; absent: 1.' })),
})
export type MouseScrollBody = Static<typeof MouseScrollBody>

export const MouseDragBody = Type.Object({ from: Point, to: Point })
export type MouseDragBody = Static<typeof MouseDragBody>

/** Of down and up. */
export const MouseButtonBody = Type.Object({ button: optionalNull(Button) })
export type MouseButtonBody = Static<typeof MouseButtonBody>

export const KeyboardTypeBody = Type.Object({
  text: Type.String(),
  delay_in_ms: optionalNull(
    Type.Integer({ minimum: 0, maximum: TYPE_DELAY_MAX_MS, description: 'Between two characters.' }),
  ),
})
export type KeyboardTypeBody = Static<typeof KeyboardTypeBody>

/** Of press, down and up. */
export const KeyboardKeysBody = Type.Object({
  keys: Type.Array(Type.String({ minLength: 1 }), { minItems: 1, description: 'Held together, as ["ctrl", "c"].' }),
})
export type KeyboardKeysBody = Static<typeof KeyboardKeysBody>
