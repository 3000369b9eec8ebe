/** Something is wrong with a deploy body: 400 `field: text`. */
export class BodyFault extends Error {
  override name = 'BodyFault'
  readonly field: string

  constructor(field: string, text: string) {
    super(text)
    this.field = field
  }
}

export const fault = (field: string, text: string) => new BodyFault(field, text)
